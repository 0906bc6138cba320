//! GETATTR and more: attributes, layout and fencing generation of a file (RFC 8881 §18.7).

use crate::FileInfo;
use crate::schema::Body;
use crate::tx::Tx;
use types::{FileId, Generation, Status};

/// Returns everything that is stored about a file except its names and extended attributes. `Stale` if the file does
/// not exist.
pub(crate) fn read(tx: &Tx<'_>, id: FileId) -> Result<FileInfo, Status> {
    let core = tx.core(id)?;
    let tail = tx.tail(id)?;
    let attrs = core.attrs(id, &tail);
    Ok(match core.body {
        Body::Regular { generation, layout, .. } => {
            FileInfo { attrs, whole: tail.whole, written: tail.written, generation, layout }
        }
        _ => FileInfo { attrs, whole: 0, written: 0, generation: Generation::default(), layout: None },
    })
}
