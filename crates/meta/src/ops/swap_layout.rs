//! The swap of a file's layout: other objects, which have the same bytes, replace the objects of the file.
//!
//! A file has at most one record of unused objects. From [`begin`] on it names the new objects, and [`plan`] replaces it
//! by one of the old objects in the batch that swaps the layout. So after a crash the record names exactly the objects
//! that the file does not use.

use super::Plan;
use crate::engine::Expect;
use crate::schema::{self, Body, Record};
use crate::tx::Tx;
use crate::{Layout, Unused};
use types::{FileId, Generation, Status, limits};

/// Notes that objects of the layout `to` are about to be made, and fences the present objects. Answers with the new
/// generation; `None` if `from` is not the layout of the file.
///
/// # Errors
/// `Delay` while the file has unused objects of an earlier swap; `TooBig` for a layout that is too long.
pub(crate) fn begin(tx: &mut Tx<'_>, id: FileId, from: &Layout, to: &Layout) -> Plan<Option<Generation>> {
    if to.body.len() > limits::LAYOUT_RECORD_MAX {
        return Err(Status::TooBig);
    }
    let mut core = tx.rely_on(id)?;
    let Body::Regular { layout, .. } = &core.body else { return Err(Status::WrongType) };
    if layout.as_ref() != Some(from) {
        return super::known(None);
    }
    let key = schema::unused_key(id);
    if tx.get(&key)?.is_some() {
        return Err(Status::Delay);
    }
    tx.expect(Expect::Absent(key.clone()));
    let generation = tx.raise_generation(id, &mut core)?;
    tx.put_core(id, &core);
    tx.put(key, Unused { file: id, generation, layout: to.clone() }.to_value());
    super::known(Some(generation))
}

/// Replaces the layout `from` of a file by the layout of its unused objects, which are durable and have the bytes of
/// the file since [`begin`] answered with `begun`. The objects of `from` are unused from now on. Raises the generation
/// and answers with it; `None` if `from` is not the layout of the file, if its generation is not `generation`, or if
/// `begun` is not the generation of its unused objects.
pub(crate) fn plan(
    tx: &mut Tx<'_>,
    id: FileId,
    (from, generation): (&Layout, Generation),
    begun: Generation,
) -> Plan<Option<Generation>> {
    let mut core = tx.rely_on(id)?;
    let key = schema::unused_key(id);
    let Some(value) = tx.get(&key)? else { return super::known(None) };
    let new = Unused::from_value(value.clone())?;
    let Body::Regular { generation: present, layout, .. } = &mut core.body else { return Err(Status::WrongType) };
    if (layout.as_ref(), *present, new.generation) != (Some(from), generation, begun) {
        return super::known(None);
    }
    *layout = Some(new.layout);
    tx.expect(Expect::Reads(key.clone(), value));
    // Without this batch the space of the new objects, and then that of the old ones, is not freed.
    tx.frees();
    let raised = tx.raise_generation(id, &mut core)?;
    tx.put_core(id, &core);
    tx.put(key, Unused { file: id, generation: raised, layout: from.clone() }.to_value());
    super::known(Some(raised))
}
