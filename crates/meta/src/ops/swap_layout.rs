//! The swap of a file's layout: new objects with the same bytes replace the objects of the file.
//!
//! A file has at most one record of unused objects. [`begin`] writes the record for the new objects. [`plan`] replaces
//! this record with one for the old objects, in the batch that changes the layout. So after a crash, the record always
//! names exactly the objects that the file does not use.

use super::Plan;
use crate::engine::Expect;
use crate::schema::{self, Body, Record};
use crate::tx::Tx;
use crate::{Layout, Unused};
use types::{FileId, Generation, Status, limits};

/// Begins a swap: records that the caller is about to create the objects of the layout `to`, and fences the current
/// objects. Returns the new generation; `None` if the layout of the file is not `from`.
///
/// # Errors
/// `Delay` while the file has unused objects of an earlier swap; `TooBig` if the encoded layout is too long.
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

/// Completes a swap: replaces the layout `from` of a file with the layout in the file's record of unused objects. The
/// caller has made the bytes of the file durable in the new objects since [`begin`] returned the generation `begun`.
/// The objects of `from` become unused. Returns the raised generation.
///
/// Returns `None` and changes nothing unless the file has the layout `from` and the generation `generation`, and the
/// record of unused objects has the generation `begun`.
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
    // A nearly full store accepts this batch, because the batch lets the mgr remove the old objects, which frees space.
    tx.frees();
    let raised = tx.raise_generation(id, &mut core)?;
    tx.put_core(id, &core);
    tx.put(key, Unused { file: id, generation: raised, layout: from.clone() }.to_value());
    super::known(Some(raised))
}
