//! LOOKUP: returns the file that a name stands for.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::reply::{Body, no_entry};
use crate::request::Header;
use types::Status;

/// Executes LOOKUP.
pub(crate) async fn lookup(fs: &FileSystem, header: &Header, name: &[u8]) -> Answer {
    let dir = fs.node(header)?;
    fs.open_unlink_races.looks_up(header.pid, header.node, name).await;
    let mark = fs.coherence.attributes_requested();
    let found = fs.by_name(header).lookup(&dir, name).await;
    fs.open_unlink_races.looked_up(header.pid, found.as_ref().ok().map(|(node, _)| node.id.0));
    match found {
        Ok((node, attrs)) => {
            let entry = fs.entry_found(Body::with_capacity(128), (header, name), (&node, &attrs), Some(mark));
            Ok(entry.reply())
        }
        Err(error) if error.is(Status::NoEnt) => {
            // The name does not exist, so the kernel drops the name from its cache. Remove the name from the mount's
            // table of names in the kernel's cache, too.
            fs.nodes.unnamed(header.node, name);
            let absent_valid = fs.config.absent_valid;
            if absent_valid.is_zero() { Err(Errno::from(error)) } else { Ok(no_entry(absent_valid)) }
        }
        Err(error) => Err(Errno::from(error)),
    }
}
