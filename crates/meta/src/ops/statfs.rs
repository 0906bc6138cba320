//! The number of inodes in the file system, for statfs(2).

use crate::schema::{self, Counts, Record};
use crate::tx::Tx;
use types::Status;

/// Returns the number of inodes, including the root and orphans.
pub(crate) fn read(tx: &Tx<'_>) -> Result<u64, Status> {
    let value = tx.get(schema::COUNTS)?.ok_or(Status::Corrupt)?;
    Ok(Counts::from_value(value)?.files)
}
