//! Errors for kernel clients when an iod is lost: EIO instead of an endless wait.
//!
//! Weir's own client gets `Delay`, and itself limits how often it repeats the request. After `Delay`, a kernel client
//! retries forever, and the reading program hangs. So once an iod is lost, the mgr replies with `Io` to requests of
//! kernel clients for bytes on this iod.

use super::Volume;
use nfs::fs::Ctx;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use types::{ByteRange, FileId, Status, limits};

/// Ids of the clients that have used native layouts. These are clients of Weir itself, and not kernel clients.
#[derive(Debug, Default)]
pub(crate) struct NativeClients(Mutex<HashSet<u64>>);

impl NativeClients {
    /// Records that a client has sent a request that only Weir's own client sends. So the mgr does not treat the client
    /// as a kernel client.
    pub(super) fn seen(&self, client: u64) {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The set of clients may contain clients that no longer exist, so clear the set when it is full. The next
        // layout request of a client that still exists adds this client again.
        if clients.len() >= limits::CLIENTS_MAX {
            clients.clear();
        }
        clients.insert(client);
    }

    fn has(&self, client: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&client)
    }
}

impl Volume {
    /// Returns the outcome of a request for a range of a file (`None`: the whole file). For a kernel client, replaces
    /// `Delay` by `Io` if an iod that holds bytes of the range is lost.
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

    /// Returns how many bytes at the beginning of a range a kernel client can read before the first byte on a lost iod.
    /// Returns `None` if the client can read all bytes or none. A kernel reads ahead, beyond the bytes that the program
    /// requested. So the kernel must get the available bytes; it then requests the other bytes separately.
    pub(crate) fn before_lost(&self, ctx: &Ctx, file: FileId, range: Option<ByteRange>) -> Option<u64> {
        let range = range.filter(|_| !self.native.has(ctx.client))?;
        let info = self.namespace.info(file).ok()?;
        let first = self.objects(&info).ok()??.before_lost(range);
        (first > 0 && first < range.len).then_some(first)
    }

    fn is_lost(&self, file: FileId, range: Option<ByteRange>) -> bool {
        // A pending truncation or fence must first reach all objects. While one is pending, a lost iod also blocks
        // requests to the other iods of the file.
        let range = range.filter(|_| self.intents.truncation(file).is_none() && !self.intents.is_fencing(file));
        let Ok(info) = self.namespace.info(file) else { return false };
        let Ok(objects) = self.objects(&info) else { return false };
        match objects {
            Some(objects) => objects.lost_in(range),
            // The file has no objects yet. It counts as lost if no iod is connected that the mgr could choose for the
            // file.
            None => self.iods.up().is_empty() && !self.iods.lost().is_empty(),
        }
    }
}
