//! The layouts that clients hold: which clients may write on the direct path, whether they reported the size, and which
//! clients may read on it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::FileId;

/// The granted layouts. Lost with a restart of the mgr, as the layouts themselves are.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    files: Mutex<HashMap<FileId, HashMap<u64, Grant>>>,
    /// The clients with a layout for reading, and whether that layout is of a kernel's kind.
    readers: Mutex<HashMap<FileId, HashMap<u64, bool>>>,
}

/// The state of a client with a layout for writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Grant {
    /// Whether the client has reported, by LAYOUTCOMMIT since it got its layout, everything that it has written.
    committed: bool,
    /// Whether the client has a kernel's layout: it does not report bytes that a data server made durable at once.
    silent: bool,
    /// Whether another client has truncated the file since this client got its layout: the truncation may have removed
    /// parts of a write in flight.
    cut: bool,
}

impl Grants {
    /// Records that a client gets a layout for writing; `silent`: of a kernel's kind.
    pub(crate) fn granted(&self, file: FileId, client: u64, silent: bool) {
        let mut map = self.map();
        let grant = map.entry(file).or_default().entry(client).or_default();
        *grant = Grant { committed: false, silent: grant.silent || silent, cut: grant.cut };
    }

    /// Records that a client gets a layout for reading; `foreign`: of a kernel's kind.
    pub(crate) fn granted_read(&self, file: FileId, client: u64, foreign: bool) {
        *self.readers().entry(file).or_default().entry(client).or_default() |= foreign;
    }

    /// Records that a client holds no layout for reading any more.
    pub(crate) fn read_gone(&self, file: FileId, client: u64) {
        let mut map = self.readers();
        if let Some(clients) = map.get_mut(&file) {
            clients.remove(&client);
            if clients.is_empty() {
                map.remove(&file);
            }
        }
    }

    /// Returns whether no client uses the file on the direct path, except perhaps this client by a native layout.
    /// Weir's clients themselves keep requests on one path from overtaking requests on the other.
    pub(crate) fn all_come_here(&self, file: FileId, client: u64) -> bool {
        let writes = self.map().get(&file).is_none_or(|all| all.iter().all(|(c, grant)| *c == client && !grant.silent));
        writes && self.readers().get(&file).is_none_or(|all| all.iter().all(|(c, foreign)| *c == client && !foreign))
    }

    /// Returns whether this client may have extended the file without a report.
    pub(crate) fn is_silent(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).and_then(|clients| clients.get(&client)).is_some_and(|grant| grant.silent)
    }

    /// Records that this client truncates the file.
    pub(crate) fn cut_by(&self, file: FileId, client: u64) {
        let mut map = self.map();
        let others = map.get_mut(&file).into_iter().flatten().filter(|(other, _)| **other != client);
        others.for_each(|(_, grant)| grant.cut = true);
    }

    /// Returns whether another client has truncated the file while this client held its layout. The truncation may then
    /// have removed bytes that this client reports as written.
    pub(crate) fn is_cut(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).and_then(|clients| clients.get(&client)).is_some_and(|grant| grant.cut)
    }

    /// Records that a client has reported its writes.
    pub(crate) fn committed(&self, file: FileId, client: u64) {
        if let Some(grant) = self.map().get_mut(&file).and_then(|clients| clients.get_mut(&client)) {
            grant.committed = true;
        }
    }

    /// Records that a client holds no layout for writing any more; returns whether it may have written without a
    /// report.
    pub(crate) fn gone(&self, file: FileId, client: u64) -> bool {
        let mut map = self.map();
        let Some(clients) = map.get_mut(&file) else { return false };
        let grant = clients.remove(&client);
        if clients.is_empty() {
            map.remove(&file);
        }
        grant.is_some_and(|grant| !grant.committed)
    }

    /// Returns whether this client may have written without a report. While it holds its layout it may write on.
    pub(crate) fn is_untold(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).and_then(|clients| clients.get(&client)).is_some_and(|grant| !grant.committed)
    }

    /// Returns whether a client other than this one may write.
    pub(crate) fn written_by_others(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).is_some_and(|clients| clients.keys().any(|c| *c != client))
    }

    /// Returns whether the objects may hold bytes behind the known size that this client does not know of: other
    /// clients may write, or this client has not reported its writes. A client reports its writes before it sets a
    /// size.
    pub(crate) fn may_hold_more(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).is_some_and(|clients| clients.iter().any(|(c, grant)| *c != client || !grant.committed))
    }

    /// Returns whether any client has a layout of the file.
    pub(crate) fn is_held(&self, file: FileId) -> bool {
        self.written(file) || self.readers().contains_key(&file)
    }

    /// Returns whether any client may write.
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
        grants.cut_by(file, 1);
        grants.granted(file, 1, false);
        grants.granted(file, 2, false);
        assert!(!grants.is_cut(file, 1));
        grants.cut_by(file, 1);
        assert!(grants.is_cut(file, 2) && !grants.is_cut(file, 1));
        grants.committed(file, 2);
        grants.granted(file, 2, false);
        assert!(grants.is_cut(file, 2), "a write that was in progress may still be in progress");
        grants.gone(file, 2);
        grants.granted(file, 2, false);
        assert!(!grants.is_cut(file, 2));
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
