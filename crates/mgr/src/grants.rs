//! Who may be writing past the mgr: layouts for writing that are out, and whether their holders told the size.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::FileId;

/// Layouts for writing that are out. Lost with a restart of the mgr, as the layouts themselves are.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    /// Per file and client: whether the client said LAYOUTCOMMIT since it got its layout.
    files: Mutex<HashMap<FileId, HashMap<u64, bool>>>,
}

impl Grants {
    /// A client gets a layout for writing.
    pub(crate) fn granted(&self, file: FileId, client: u64) {
        self.map().entry(file).or_default().insert(client, false);
    }

    /// A client told what it wrote.
    pub(crate) fn committed(&self, file: FileId, client: u64) {
        if let Some(committed) = self.map().get_mut(&file).and_then(|clients| clients.get_mut(&client)) {
            *committed = true;
        }
    }

    /// A client has no layout for writing any more; whether it may have written without telling.
    pub(crate) fn gone(&self, file: FileId, client: u64) -> bool {
        let mut map = self.map();
        let Some(clients) = map.get_mut(&file) else { return false };
        let committed = clients.remove(&client);
        if clients.is_empty() {
            map.remove(&file);
        }
        committed == Some(false)
    }

    /// Whether this client may have written without telling. As long as it has its layout it may write on.
    pub(crate) fn is_untold(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).and_then(|clients| clients.get(&client)) == Some(&false)
    }

    /// Whether anybody but this client may be writing.
    pub(crate) fn written_by_others(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).is_some_and(|clients| clients.keys().any(|c| *c != client))
    }

    /// Whether the objects may hold bytes that this client does not know to be behind the file's known size: others may
    /// be writing, or it has not told what it wrote. A client tells what it wrote before it sets a size.
    pub(crate) fn may_hold_more(&self, file: FileId, client: u64) -> bool {
        self.map().get(&file).is_some_and(|clients| clients.iter().any(|(c, committed)| *c != client || !committed))
    }

    /// Whether anybody at all may be writing.
    pub(crate) fn written(&self, file: FileId) -> bool {
        self.map().contains_key(&file)
    }

    fn map(&self) -> MutexGuard<'_, HashMap<FileId, HashMap<u64, bool>>> {
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
        grants.granted(file, 1);
        assert!(grants.written(file) && grants.written_by_others(file, 2) && !grants.written_by_others(file, 1));
        grants.granted(file, 2);
        assert!(grants.written_by_others(file, 1));
        assert!(grants.may_hold_more(file, 1));
        grants.committed(file, 1);
        assert!(grants.may_hold_more(file, 1));
        assert!(!grants.gone(file, 1));
        assert!(grants.is_untold(file, 2) && grants.is_untold(file, 2));
        grants.committed(file, 2);
        assert!(!grants.is_untold(file, 2) && !grants.is_untold(file, 3));
        assert!(!grants.may_hold_more(file, 2) && grants.may_hold_more(file, 1));
        grants.granted(file, 2);
        assert!(grants.may_hold_more(file, 2));
        assert!(grants.gone(file, 2));
        assert!(!grants.written(file));
        grants.committed(file, 3);
        assert!(!grants.written(file));
    }
}
