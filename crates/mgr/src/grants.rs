//! The granted layouts: which clients may write or read a file on the direct path, and which writers have reported the
//! size of the file.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::FileId;

/// The granted layouts, by file and client. The table is only in memory, because a restart of the mgr ends all layouts.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    files: Mutex<HashMap<FileId, HashMap<u64, Grant>>>,
    /// For each file: the clients with a read layout, and for each client whether the layout is of a type for kernel
    /// clients.
    readers: Mutex<HashMap<FileId, HashMap<u64, bool>>>,
}

/// What the mgr knows of a client with a write layout of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Grant {
    /// Whether the client has reported by LAYOUTCOMMIT all its writes since it got this write layout.
    committed: bool,
    /// Whether this write layout is of a type for kernel clients. A kernel client sends no LAYOUTCOMMIT for a WRITE
    /// that a data server has made durable at once (FILE_SYNC).
    silent: bool,
    /// Whether another client has truncated the file since this client got this write layout. The truncation may have
    /// removed parts of a write in flight.
    truncated: bool,
}

impl Grants {
    /// Records that the mgr grants a write layout to a client. `silent`: the layout is of a type for kernel clients.
    pub(crate) fn granted(&self, file: FileId, client: u64, silent: bool) {
        let mut map = self.map();
        let grant = map.entry(file).or_default().entry(client).or_default();
        *grant = Grant { committed: false, silent: grant.silent || silent, truncated: grant.truncated };
    }

    /// Records that the mgr grants a read layout to a client. `foreign`: the layout is of a type for kernel clients.
    pub(crate) fn granted_read(&self, file: FileId, client: u64, foreign: bool) {
        *self.readers().entry(file).or_default().entry(client).or_default() |= foreign;
    }

    /// Records that a client no longer holds a read layout of the file.
    pub(crate) fn read_gone(&self, file: FileId, client: u64) {
        let mut map = self.readers();
        if let Some(clients) = map.get_mut(&file) {
            clients.remove(&client);
            if clients.is_empty() {
                map.remove(&file);
            }
        }
    }

    /// Returns true if no other client holds a layout of the file, and `client` holds none of a type for kernel
    /// clients. `client` may hold a native layout, because Weir's own client orders its requests on the direct path and
    /// its requests on the mgr path.
    pub(crate) fn all_come_here(&self, file: FileId, client: u64) -> bool {
        let writes = self.map().get(&file).is_none_or(|all| all.iter().all(|(c, grant)| *c == client && !grant.silent));
        writes && self.readers().get(&file).is_none_or(|all| all.iter().all(|(c, foreign)| *c == client && !foreign))
    }

    /// Returns whether this client holds a write layout of a type for kernel clients, under which the client may extend
    /// the file without a report to the mgr.
    pub(crate) fn is_silent(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).and_then(|clients| clients.get(&client)).is_some_and(|grant| grant.silent)
    }

    /// Records in the write layouts of all clients except `client` that `client` truncates the file.
    pub(crate) fn truncated_by(&self, file: FileId, client: u64) {
        let mut map = self.map();
        let others = map.get_mut(&file).into_iter().flatten().filter(|(other, _)| **other != client);
        others.for_each(|(_, grant)| grant.truncated = true);
    }

    /// Returns whether another client has truncated the file since this client got its write layout. The truncation may
    /// have removed bytes that this client later reports as written.
    pub(crate) fn is_truncated(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).and_then(|clients| clients.get(&client)).is_some_and(|grant| grant.truncated)
    }

    /// Records that a client has reported all its writes under its write layout.
    pub(crate) fn committed(&self, file: FileId, client: u64) {
        if let Some(grant) = self.map().get_mut(&file).and_then(|clients| clients.get_mut(&client)) {
            grant.committed = true;
        }
    }

    /// Records that a client no longer holds a write layout of the file. Returns whether the client may have written
    /// without a report.
    pub(crate) fn gone(&self, file: FileId, client: u64) -> bool {
        let mut map = self.map();
        let Some(clients) = map.get_mut(&file) else { return false };
        let grant = clients.remove(&client);
        if clients.is_empty() {
            map.remove(&file);
        }
        grant.is_some_and(|grant| !grant.committed)
    }

    /// Returns whether this client holds a write layout of the file and may have written without a report.
    pub(crate) fn is_untold(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).and_then(|clients| clients.get(&client)).is_some_and(|grant| !grant.committed)
    }

    /// Returns whether a client other than this one holds a write layout of the file.
    pub(crate) fn written_by_others(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).is_some_and(|clients| clients.keys().any(|c| *c != client))
    }

    /// Returns whether the objects may hold bytes beyond the recorded size: another client holds a write layout, or
    /// `client` has not reported all writes under its own write layout. A client reports its writes before it sets a
    /// size.
    pub(crate) fn may_hold_more(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).is_some_and(|clients| clients.iter().any(|(c, grant)| *c != client || !grant.committed))
    }

    /// Returns whether any client holds a layout of the file.
    pub(crate) fn is_held(&self, file: FileId) -> bool {
        self.written(file) || self.readers().contains_key(&file)
    }

    /// Returns whether any client holds a write layout of the file.
    pub(crate) fn written(&self, file: FileId) -> bool {
        self.map().contains_key(&file)
    }

    fn readers(&self) -> MutexGuard<'_, HashMap<FileId, HashMap<u64, bool>>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn map(&self) -> MutexGuard<'_, HashMap<FileId, HashMap<u64, Grant>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_as_written_until_the_writer_has_reported_and_returned() {
        let (grants, file) = (Grants::default(), FileId(5));
        assert!(!grants.written(file) && !grants.gone(file, 1));
        grants.granted(file, 1, false);
        assert!(grants.written(file) && grants.written_by_others(file, 2) && !grants.written_by_others(file, 1));
        grants.granted(file, 2, false);
        assert!(grants.written_by_others(file, 1));
        assert!(grants.may_hold_more(file, 1));
        grants.committed(file, 1);
        assert!(grants.may_hold_more(file, 1));
        assert!(!grants.gone(file, 1));
        assert!(grants.is_untold(file, 2) && grants.is_untold(file, 2));
        grants.committed(file, 2);
        assert!(!grants.is_untold(file, 2) && !grants.is_untold(file, 3));
        assert!(!grants.may_hold_more(file, 2) && grants.may_hold_more(file, 1));
        grants.granted(file, 2, false);
        assert!(grants.may_hold_more(file, 2));
        assert!(grants.gone(file, 2));
        assert!(!grants.written(file));
        grants.committed(file, 3);
        assert!(!grants.written(file));
    }

    #[test]
    fn a_truncate_by_another_client_is_remembered_until_the_layout_ends() {
        let (grants, file) = (Grants::default(), FileId(5));
        grants.truncated_by(file, 1);
        grants.granted(file, 1, false);
        grants.granted(file, 2, false);
        assert!(!grants.is_truncated(file, 1));
        grants.truncated_by(file, 1);
        assert!(grants.is_truncated(file, 2) && !grants.is_truncated(file, 1));
        grants.committed(file, 2);
        grants.granted(file, 2, false);
        assert!(grants.is_truncated(file, 2), "a write that was in progress may still be in progress");
        grants.gone(file, 2);
        grants.granted(file, 2, false);
        assert!(!grants.is_truncated(file, 2));
    }

    #[test]
    fn only_a_sole_client_that_is_no_kernel_sends_all_requests_to_the_mgr() {
        let (grants, file) = (Grants::default(), FileId(5));
        assert!(grants.all_come_here(file, 1));
        grants.granted(file, 1, false);
        grants.granted_read(file, 1, false);
        assert!(grants.all_come_here(file, 1) && !grants.all_come_here(file, 2));
        grants.granted_read(file, 2, false);
        assert!(!grants.all_come_here(file, 1));
        grants.read_gone(file, 2);
        assert!(grants.all_come_here(file, 1));
        grants.gone(file, 1);
        assert!(!grants.all_come_here(file, 2));
        grants.read_gone(file, 1);
        assert!(grants.all_come_here(file, 2) && grants.readers().is_empty() && !grants.is_held(file));
        grants.granted_read(file, 2, true);
        assert!(!grants.all_come_here(file, 2), "a kernel may read under its layout what it wrote through the mgr");
        assert!(grants.is_held(file));
        grants.read_gone(file, 2);
        grants.granted(file, 2, true);
        assert!(!grants.all_come_here(file, 2));
    }
}
