//! What clients are told of bytes whose iod does not come back.
//!
//! Clients of ours are told to come again, and decide themselves how often. A kernel would do so for ever, and the
//! program that reads with it: it is told that the bytes cannot be reached (`Io`), once the iod is away for long enough to be
//! taken for lost, and of no other bytes than those.

use super::Room;
use nfs::fs::Ctx;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use types::{ByteRange, FileId, Status, limits};

/// Clients that were seen to use the native layouts, by client id.
#[derive(Debug, Default)]
pub(crate) struct NativeClients(Mutex<HashSet<u64>>);

impl NativeClients {
    /// A client asks for what only ours know.
    pub(super) fn seen(&self, client: u64) {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that are gone are in it as well. One that is forgotten is seen again with its next file.
        if clients.len() >= limits::CLIENTS_MAX {
            clients.clear();
        }
        clients.insert(client);
    }

    fn has(&self, client: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&client)
    }
}

impl Room {
    /// The outcome of a request for these bytes of a file, or for all of it: `Io` instead of `Delay` where waiting is in vain.
    pub(crate) fn unless_lost<T>(
        &self,
        ctx: &Ctx,
        file: FileId,
        range: Option<ByteRange>,
        outcome: Result<T, Status>,
    ) -> Result<T, Status> {
        match outcome {
            Err(Status::Delay) if ctx.client != 0 && !self.native.has(ctx.client) && self.is_lost(file, range) => {
                Err(Status::Io)
            }
            other => other,
        }
    }

    /// How many bytes at the beginning of a range can be reached where not all of them can. A kernel asks for more at a time
    /// than a program does; it is told what there is, and asks again for the rest alone.
    pub(crate) fn before_lost(&self, ctx: &Ctx, file: FileId, range: Option<ByteRange>) -> Option<u64> {
        let range = range.filter(|_| !self.native.has(ctx.client))?;
        let info = self.namespace.info(file).ok()?;
        let first = self.objects(&info).ok()??.before_lost(range);
        (first > 0 && first < range.len).then_some(first)
    }

    fn is_lost(&self, file: FileId, range: Option<ByteRange>) -> bool {
        // What has to reach all objects first keeps everybody from the others too.
        let range = range.filter(|_| self.notes.cut(file).is_none() && !self.notes.is_fencing(file));
        let Ok(info) = self.namespace.info(file) else { return false };
        let Ok(objects) = self.objects(&info) else { return false };
        match objects {
            Some(objects) => objects.lost_in(range),
            // It has no place yet, and nobody is there to take it.
            None => self.iods.up().is_empty() && !self.iods.lost().is_empty(),
        }
    }
}
