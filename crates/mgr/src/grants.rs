//! Who may be writing past the mgr: layouts for writing that are out, and whether their holders told the size. And who may be reading so.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::FileId;

/// Layouts that are out. Lost with a restart of the mgr, as the layouts themselves are.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    files: Mutex<HashMap<FileId, HashMap<u64, Grant>>>,
    /// Who has one for reading, and whether it is of a kind that is not ours.
    readers: Mutex<HashMap<FileId, HashMap<u64, bool>>>,
}

/// What is known of a client with a layout for writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Grant {
    /// Whether it said LAYOUTCOMMIT since it got its layout, and told with it all that it has written.
    committed: bool,
    /// Whether it has one of the files kind: it tells nothing of what a data server has made durable at once.
    silent: bool,
    /// Whether another client has cut the file since it got its layout: of a write that was under way then, pieces may have been cut off again.
    cut: bool,
}

impl Grants {
    /// A client gets a layout for writing; `silent` one of the files kind.
    pub(crate) fn granted(&self, file: FileId, client: u64, silent: bool) {
        let mut map = self.map();
        let grant = map.entry(file).or_default().entry(client).or_default();
        *grant = Grant { committed: false, silent: grant.silent || silent, cut: grant.cut };
    }

    /// A client gets a layout for reading; `foreign` one that is not of our own kind.
    pub(crate) fn granted_read(&self, file: FileId, client: u64, foreign: bool) {
        *self.readers().entry(file).or_default().entry(client).or_default() |= foreign;
    }

    /// A client has no layout for reading any more.
    pub(crate) fn read_gone(&self, file: FileId, client: u64) {
        let mut map = self.readers();
        if let Some(clients) = map.get_mut(&file) {
            clients.remove(&client);
            if clients.is_empty() {
                map.remove(&file);
            }
        }
    }

    /// Whether nobody reads or writes the file past the mgr but, perhaps, this client by layouts of our own kind: clients of ours see to it
    /// themselves that what they send by one way does not meet what they sent by the other.
    pub(crate) fn all_come_here(&self, file: FileId, client: u64) -> bool {
        let writes = self.map().get(&file).is_none_or(|all| all.iter().all(|(c, grant)| *c == client && !grant.silent));
        writes && self.readers().get(&file).is_none_or(|all| all.iter().all(|(c, foreign)| *c == client && !foreign))
    }

    /// Whether this client may have made the file longer without a word.
    pub(crate) fn is_silent(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).and_then(|clients| clients.get(&client)).is_some_and(|grant| grant.silent)
    }

    /// This client cuts the file.
    pub(crate) fn cut_by(&self, file: FileId, client: u64) {
        let mut map = self.map();
        let others = map.get_mut(&file).into_iter().flatten().filter(|(other, _)| **other != client);
        others.for_each(|(_, grant)| grant.cut = true);
    }

    /// Whether another client has cut the file while this one had its layout: then what it says of how far it wrote need not be there.
    pub(crate) fn is_cut(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).and_then(|clients| clients.get(&client)).is_some_and(|grant| grant.cut)
    }

    /// A client told what it wrote.
    pub(crate) fn committed(&self, file: FileId, client: u64) {
        if let Some(grant) = self.map().get_mut(&file).and_then(|clients| clients.get_mut(&client)) {
            grant.committed = true;
        }
    }

    /// A client has no layout for writing any more; whether it may have written without telling.
    pub(crate) fn gone(&self, file: FileId, client: u64) -> bool {
        let mut map = self.map();
        let Some(clients) = map.get_mut(&file) else { return false };
        let grant = clients.remove(&client);
        if clients.is_empty() {
            map.remove(&file);
        }
        grant.is_some_and(|grant| !grant.committed)
    }

    /// Whether this client may have written without telling. As long as it has its layout it may write on.
    pub(crate) fn is_untold(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).and_then(|clients| clients.get(&client)).is_some_and(|grant| !grant.committed)
    }

    /// Whether anybody but this client may be writing.
    pub(crate) fn written_by_others(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).is_some_and(|clients| clients.keys().any(|c| *c != client))
    }

    /// Whether the objects may hold bytes that this client does not know to be behind the file's known size: others may
    /// be writing, or it has not told what it wrote. A client tells what it wrote before it sets a size.
    pub(crate) fn may_hold_more(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).is_some_and(|clients| clients.iter().any(|(c, grant)| *c != client || !grant.committed))
    }

    /// Whether anybody at all may be writing.
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
    fn only_untold_writing_counts() {
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
    fn cuts_of_others_are_remembered_until_the_layout_is_gone() {
        let (grants, file) = (Grants::default(), FileId(5));
        grants.cut_by(file, 1);
        grants.granted(file, 1, false);
        grants.granted(file, 2, false);
        assert!(!grants.is_cut(file, 1));
        grants.cut_by(file, 1);
        assert!(grants.is_cut(file, 2) && !grants.is_cut(file, 1));
        grants.committed(file, 2);
        grants.granted(file, 2, false);
        assert!(grants.is_cut(file, 2), "a write that was under way then may be so still");
        grants.gone(file, 2);
        grants.granted(file, 2, false);
        assert!(!grants.is_cut(file, 2));
    }

    #[test]
    fn others_and_kernels_do_not_come_here() {
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
        assert!(grants.all_come_here(file, 2) && grants.readers().is_empty());
        grants.granted_read(file, 2, true);
        assert!(!grants.all_come_here(file, 2), "a kernel may read by its layout what it wrote here");
        grants.read_gone(file, 2);
        grants.granted(file, 2, true);
        assert!(!grants.all_come_here(file, 2));
    }
}
