//! Errors for kernel clients when an iod counts as lost: EIO instead of an endless wait.
//!
//! Weir's own clients get `Delay`, and decide themselves how often they retry. A kernel client would retry forever, and
//! the program that reads would hang. So it gets `Io` once the iod has been down long enough to count as lost, and only
//! for the bytes on that iod.

use super::Volume;
use nfs::fs::Ctx;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use types::{ByteRange, FileId, Status, limits};

/// Clients that have used native layouts, by client id.
#[derive(Debug, Default)]
pub(crate) struct NativeClients(Mutex<HashSet<u64>>);

impl NativeClients {
    /// Records that a client requests something that only Weir's clients know.
    pub(super) fn seen(&self, client: u64) {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The set may hold clients that are gone. A forgotten client is recorded again with its next file.
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
    /// Returns the outcome of a request for these bytes of a file, or for all of it, with `Io` instead of `Delay` if an
    /// iod with these bytes is lost.
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

    /// Returns how many bytes at the beginning of a range can be reached, if not all can. A kernel requests more at a
    /// time than a program; it gets the reachable bytes, and asks for the rest separately.
    pub(crate) fn before_lost(&self, ctx: &Ctx, file: FileId, range: Option<ByteRange>) -> Option<u64> {
        let range = range.filter(|_| !self.native.has(ctx.client))?;
        let info = self.namespace.info(file).ok()?;
        let first = self.objects(&info).ok()??.before_lost(range);
        (first > 0 && first < range.len).then_some(first)
    }

    fn is_lost(&self, file: FileId, range: Option<ByteRange>) -> bool {
        // A truncation or fence that must first reach all objects blocks access to the other objects too.
        let range = range.filter(|_| self.notes.cut(file).is_none() && !self.notes.is_fencing(file));
        let Ok(info) = self.namespace.info(file) else { return false };
        let Ok(objects) = self.objects(&info) else { return false };
        match objects {
            Some(objects) => objects.lost_in(range),
            // The file has no iods yet, and none is up to be chosen.
            None => self.iods.up().is_empty() && !self.iods.lost().is_empty(),
        }
    }
}
