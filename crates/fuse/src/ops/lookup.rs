//! LOOKUP: what a name stands for.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::reply::{Body, no_entry};
use crate::request::Header;
use types::Status;

/// See the head of this file.
pub(crate) async fn lookup(fs: &FileSystem, header: &Header, name: &[u8]) -> Answer {
    let dir = fs.node(header)?;
    let mark = fs.lately.mark();
    match fs.acting(header).lookup(&dir, name).await {
        Ok((node, attrs)) => Ok(fs.entry_found(Body::with_capacity(128), header, (&node, &attrs), Some(mark)).reply()),
        Err(error) if error.is(Status::NoEnt) && !fs.config.absent_valid.is_zero() => {
            Ok(no_entry(fs.config.absent_valid))
        }
        Err(error) => Err(Errno::from(error)),
    }
}
