//! The table of inodes that the kernel has, by node id.

use crate::known_names::{KnownName, KnownNames, Trusted};
use crate::{Errno, abi};
use bytes::Bytes;
use client::{Node, PathExpectation};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use types::{Attrs, FileId, FileKind, Renaming};

const ESTALE: Errno = Errno(116);

/// Inodes by node id. The node id of a file is its inode number, except for the root, which has the node id 1.
pub(crate) struct Nodes {
    root: Node,
    /// The largest number of inodes that the kernel should have.
    most: usize,
    /// Notified when the kernel has more than `most` inodes.
    crowded: Arc<Notify>,
    /// The time at which this table was created.
    began: Instant,
    table: Mutex<HashMap<u64, Known>>,
    names: Mutex<Named>,
    /// How long the kernel may use cached names without another LOOKUP.
    trusted: Trusted,
}

/// Files by name: maps the hash of a directory's number and a name in the directory to the number of a file that may
/// have this name.
#[derive(Default)]
struct Named {
    hasher: RandomState,
    files: HashMap<u64, u64>,
}

impl Named {
    fn get(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.files.get(&self.hasher.hash_one((dir, name))).copied()
    }

    fn insert(&mut self, dir: u64, name: &[u8], number: u64) {
        self.files.insert(self.hasher.hash_one((dir, name)), number);
    }

    /// Removes the given names of the file `number` from the table. A name that now stands for another file stays in
    /// the table.
    fn remove(&mut self, places: &[KnownName], number: u64) {
        for place in places {
            let hash = self.hasher.hash_one((place.dir, &*place.name));
            if self.files.get(&hash) == Some(&number) {
                self.files.remove(&hash);
            }
        }
        if self.files.capacity() > 4096 && self.files.len() < self.files.capacity() / 8 {
            let most = self.files.capacity() / 4;
            self.files.shrink_to(most);
        }
    }
}

/// An inode that the kernel has.
struct Known {
    node: Node,
    /// The number of the directory in which the kernel found the file last.
    dir: u64,
    /// The names by which the kernel found the file.
    places: KnownNames,
    /// The kernel's lookup count: the number of entries that the kernel received, minus the number of lookups that the
    /// kernel has forgotten.
    lookups: u64,
    /// For directories only: the attributes in the last reply that gave the kernel a name of this inode (LOOKUP or
    /// READDIRPLUS).
    as_dir: Option<Box<Attrs>>,
    /// When the kernel last received an entry of the file, in seconds since `began`. [`u32::MAX`] means that the
    /// kernel may have cached pages of the file: the mount leaves such inodes to the kernel, which drops the least
    /// recently used ones first.
    told_at: u32,
    /// The thread that last received ESTALE for this directory. 0: no thread. [`GONE_HERE`]: this mount removed the
    /// directory.
    gone: u32,
}

/// Largest number of names on a path that the mgr checks. A longer path does not fit into a COMPOUND
/// ([`Mount::expecting`](client::Mount::expecting)).
const DEPTH_MAX: usize = 23;

/// The value of `Known::gone` for a directory that this mount itself removed. No thread has this id (`PID_MAX_LIMIT` of
/// Linux is 2^22).
const GONE_HERE: u32 = u32::MAX;

impl Known {
    /// Creates the record of an inode whose entry the kernel receives for the first time.
    fn new(node: &Node, dir: u64, told_at: u32) -> Self {
        // Copy the filehandle, because it is a slice of a network buffer of 8 KiB or more, and keeps the whole buffer
        // in memory.
        let node = Node { id: node.id, handle: Bytes::copy_from_slice(&node.handle) };
        Known { node, dir, places: KnownNames::default(), lookups: 0, as_dir: None, told_at, gone: 0 }
    }
}

/// Returns the names on the path from the root of the mount to a name in a directory. Returns `None` if the path is too
/// long or unknown.
fn path(table: &HashMap<u64, Known>, place: &KnownName) -> Option<Vec<Bytes>> {
    let mut names = vec![place.name.clone()];
    let mut dir = place.dir;
    while dir != abi::ROOT {
        if names.len() == DEPTH_MAX {
            return None;
        }
        let above = table.get(&dir)?.places.last()?;
        names.push(above.name.clone());
        dir = above.dir;
    }
    names.reverse();
    Some(names)
}

impl Nodes {
    /// Creates a table with only the root. The kernel should have at most `most` inodes, and caches names for
    /// `entry_valid`.
    pub(crate) fn new(root: Node, most: usize, entry_valid: Duration) -> Self {
        let (table, names, trusted) = (Mutex::default(), Mutex::default(), Trusted::new(entry_valid));
        Nodes { root, most, crowded: Arc::default(), began: Instant::now(), table, names, trusted }
    }

    /// Returns the number of inodes that the kernel has.
    pub(crate) fn count(&self) -> usize {
        self.table().len()
    }

    /// Returns whether the kernel has more than `most` inodes.
    pub(crate) fn are_too_many(&self) -> bool {
        self.count() > self.most
    }

    /// Returns the handle that is notified when the kernel has more than `most` inodes.
    pub(crate) fn crowded(&self) -> Arc<Notify> {
        self.crowded.clone()
    }

    /// Returns the inodes that the kernel should drop so that three quarters of `most` are left: the inodes whose
    /// entries the kernel received longest ago.
    pub(crate) fn oldest(&self) -> Vec<u64> {
        let table = self.table();
        let Some(many) = table.len().checked_sub(self.most / 4 * 3).filter(|_| table.len() > self.most) else {
            return Vec::new();
        };
        let ages = table.iter().filter(|(_, known)| known.told_at != u32::MAX);
        let mut all: Vec<(u32, u64)> = ages.map(|(number, known)| (known.told_at, *number)).collect();
        drop(table);
        if many < all.len() {
            all.select_nth_unstable(many);
            all.truncate(many);
        }
        // Set the times of the selected inodes to the present, so that inodes that the kernel cannot drop are not
        // selected again before other inodes.
        let (now, mut table) = (self.began.elapsed().as_secs() as u32 + 1, self.table());
        for (_, number) in &all {
            if let Some(known) = table.get_mut(number) {
                known.told_at = now;
            }
        }
        all.into_iter().map(|(_, number)| number).collect()
    }

    /// Records that the kernel opens a file with the given `FOPEN_*` flags. Unless the open bypasses the page cache,
    /// the kernel may have cached pages of the file from now on.
    pub(crate) fn may_have_pages(&self, number: u64, how: u32) {
        if how & abi::fopen::DIRECT_IO == 0
            && let Some(known) = self.table().get_mut(&number)
        {
            known.told_at = u32::MAX;
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u64, Known>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self, node: &Node) -> u64 {
        if node.id == self.root.id { abi::ROOT } else { node.id.0 }
    }

    /// Returns the file with this node id.
    pub(crate) fn get(&self, number: u64) -> Result<Node, Errno> {
        if number == abi::ROOT {
            return Ok(self.root.clone());
        }
        self.table().get(&number).map(|known| known.node.clone()).ok_or(ESTALE)
    }

    /// Returns the directory in which the kernel last found the file `number`, if the kernel still has the
    /// directory's inode.
    pub(crate) fn dir_of(&self, number: u64) -> Option<Node> {
        let dir = self.table().get(&number)?.dir;
        self.get(dir).ok()
    }

    /// Records that the kernel is about to receive an entry of a file with the given name and directory. Returns the
    /// node id of the file. Except for the root, calls `told` with the node id while no FORGET of the file can run.
    pub(crate) fn remember(
        &self,
        node: &Node,
        (dir, name): (u64, &[u8]),
        attrs: &Attrs,
        told: impl FnOnce(u64),
    ) -> u64 {
        let number = self.number(node);
        if number != abi::ROOT {
            let mut table = self.table();
            let now = self.now();
            let known = table.entry(number).or_insert_with(|| Known::new(node, dir, now));
            if known.told_at != u32::MAX {
                known.told_at = now;
            }
            known.dir = dir;
            known.lookups += 1;
            known.as_dir = (attrs.kind == FileKind::Directory).then(|| Box::new(*attrs));
            self.name(number, known, (dir, name), now);
            told(number);
            if table.len() > self.most {
                self.crowded.notify_one();
            }
        }
        number
    }

    /// Returns the number of seconds since this table was created.
    fn now(&self) -> u32 {
        self.began.elapsed().as_secs() as u32
    }

    fn names(&self) -> MutexGuard<'_, Named> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a name of a file, before the kernel receives an entry with this name.
    fn name(&self, number: u64, known: &mut Known, (dir, name): (u64, &[u8]), now: u32) {
        if self.names().get(dir, name) == Some(number) && known.places.found_again((dir, name), now) {
            return;
        }
        let dropped = known.places.found((dir, name), known.as_dir.is_some(), (now, self.trusted));
        let mut names = self.names();
        names.remove(&dropped, number);
        names.insert(dir, name, number);
    }

    /// Records that a name no longer stands for the file that the kernel found by the name. Returns whether the table
    /// contained this name.
    pub(crate) fn unnamed(&self, dir: u64, name: &[u8]) -> bool {
        let mut table = self.table();
        let number = self.names().get(dir, name);
        let Some((number, known)) = number.and_then(|number| Some((number, table.get_mut(&number)?))) else {
            return false;
        };
        let lost = known.places.lost(dir, name);
        self.names().remove(lost.as_slice(), number);
        lost.is_some()
    }

    /// Records that this mount has renamed a file. The kernel changes the name in its cache without a LOOKUP.
    pub(crate) fn renamed(&self, from: (u64, &[u8]), to: (u64, &[u8]), how: Renaming) {
        let [moved, replaced] = [from, to].map(|(dir, name)| self.names().get(dir, name));
        if moved.is_some() && moved == replaced {
            // Both names belong to one file, so rename(2) changes nothing.
            return;
        }
        for (dir, name) in [from, to] {
            self.unnamed(dir, name);
        }
        let back = replaced.filter(|_| how == Renaming::Exchange).map(|number| (number, from));
        let (now, mut table) = (self.now(), self.table());
        for (number, (dir, name)) in moved.map(|number| (number, to)).into_iter().chain(back) {
            if let Some(known) = table.get_mut(&number) {
                known.dir = dir;
                self.name(number, known, (dir, name), now);
            }
        }
    }

    /// Returns path expectations for all known paths by which the kernel found a file.
    pub(crate) fn walks(&self, number: u64) -> Vec<PathExpectation> {
        let table = self.table();
        let Some(known) = table.get(&number).filter(|known| known.gone != GONE_HERE) else { return Vec::new() };
        let paths = known.places.in_use(self.now(), self.trusted).filter_map(|place| path(&table, place));
        paths.map(|names| PathExpectation { to: known.node.id, from: self.root.clone(), names }).collect()
    }

    /// Returns the name by which the kernel last found a file.
    pub(crate) fn name_of(&self, number: u64) -> Option<Bytes> {
        self.table().get(&number)?.places.last().map(|place| place.name.clone())
    }

    /// Returns whether the kernel has an inode of the file.
    pub(crate) fn is_known(&self, number: u64) -> bool {
        self.table().contains_key(&number)
    }

    /// Records that the kernel has forgotten `lookups` lookups of a file (FORGET). If no lookup is left, calls
    /// `forgotten` before the kernel can receive the file again.
    pub(crate) fn forget(&self, number: u64, lookups: u64, forgotten: impl FnOnce()) {
        let mut table = self.table();
        if let Some(known) = table.get_mut(&number) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                self.names().remove(known.places.all(), number);
                table.remove(&number);
                forgotten();
                // Free unused memory of the hash table if the number of inodes has fallen far below its capacity.
                if table.capacity() > 4096 && table.len() < table.capacity() / 8 {
                    let most = table.capacity() / 4;
                    table.shrink_to(most);
                }
            }
        }
    }

    /// Records that a thread made a request in a removed directory. Returns whether it is certain that the thread uses
    /// a descriptor of the directory and not a path. After a first ESTALE, the kernel walks the path again, and a path
    /// no longer leads to a removed directory; so a second request of the same thread comes from a descriptor. For a
    /// directory that this mount itself removed, returns true at the first request.
    pub(crate) fn comes_again(&self, number: u64, pid: u32) -> bool {
        let mut table = self.table();
        let Some(known) = table.get_mut(&number) else { return false };
        known.gone == GONE_HERE || (std::mem::replace(&mut known.gone, pid) == pid && pid != 0)
    }

    /// Records that a program on this mount has removed this directory, or has renamed another directory onto it.
    pub(crate) fn removed_here(&self, id: FileId) {
        if let Some(known) = self.table().get_mut(&id.0) {
            known.gone = GONE_HERE;
        }
    }

    /// Returns the attributes of a removed directory that the kernel received when it last found the directory.
    pub(crate) fn removed(&self, number: u64) -> Option<Attrs> {
        let attrs = self.table().get(&number)?.as_dir.as_deref().copied()?;
        Some(Attrs { nlink: 0, ..attrs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Timestamp;

    fn attrs(change: u64) -> Attrs {
        let now = Timestamp { secs: 1, nanos: 2 };
        Attrs {
            id: FileId(7),
            kind: FileKind::Directory,
            mode: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            size: 5,
            used: 0,
            holes: false,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            change,
            rdev: (0, 0),
        }
    }

    /// Records that the kernel found a file by a name, and returns its node id.
    fn found(nodes: &Nodes, id: u64, place: (u64, &[u8]), attrs: &Attrs) -> u64 {
        nodes.remember(&Node { id: FileId(id), handle: Bytes::new() }, place, attrs, |_| {})
    }

    #[test]
    fn a_known_node_does_not_keep_the_reply_buffer_alive() {
        let nodes = Nodes::new(Node { id: FileId(2), handle: Bytes::new() }, 100, Duration::from_secs(1));
        let answer = Bytes::from(vec![1; 8192]);
        nodes.remember(&Node { id: FileId(7), handle: answer.slice(100..148) }, (abi::ROOT, b"f"), &attrs(1), |_| {});
        assert!(answer.is_unique());
        assert_eq!(nodes.get(7).unwrap().handle, answer.slice(100..148));
    }

    #[test]
    fn above_the_limit_only_the_oldest_nodes_without_pages_are_evicted() {
        let nodes = Nodes::new(Node { id: FileId(2), handle: Bytes::new() }, 8, Duration::from_secs(1));
        let tell = |id| found(&nodes, id, (abi::ROOT, b"f"), &attrs(1));
        (10..18).for_each(|id| assert_eq!(tell(id), id));
        assert!(nodes.oldest().is_empty());
        nodes.table().iter_mut().for_each(|(number, known)| known.told_at = 100 - *number as u32);
        nodes.may_have_pages(16, abi::fopen::DIRECT_IO);
        nodes.may_have_pages(17, 0);
        tell(20);
        nodes.table().get_mut(&20).unwrap().told_at = 1000;
        assert_eq!(nodes.oldest().into_iter().collect::<std::collections::BTreeSet<_>>(), [14, 15, 16].into());
        tell(17);
        assert_eq!(nodes.table()[&17].told_at, u32::MAX, "it still has them");
        nodes.forget(16, 1, || {});
        assert!(nodes.oldest().is_empty());
    }

    /// Returns the paths to a file, each as one string.
    fn paths(nodes: &Nodes, number: u64) -> Vec<String> {
        let text = |walk: PathExpectation| String::from_utf8(walk.names.join(&b'/')).unwrap();
        nodes.walks(number).into_iter().map(text).collect()
    }

    /// Creates a table with a directory `d` (7) in the root, a file `d/f` (8), and a file `g` (9).
    fn known() -> Nodes {
        let nodes = Nodes::new(Node { id: FileId(2), handle: Bytes::new() }, 100, Duration::from_secs(1000));
        let file = Attrs { kind: FileKind::Regular, nlink: 1, ..attrs(1) };
        for (id, dir, name, attrs) in [(7, abi::ROOT, "d", attrs(1)), (8, 7, "f", file), (9, abi::ROOT, "g", file)] {
            found(&nodes, id, (dir, name.as_bytes()), &attrs);
        }
        nodes
    }

    #[test]
    fn the_path_of_a_file_consists_of_the_looked_up_names() {
        let nodes = known();
        assert_eq!([paths(&nodes, 7), paths(&nodes, 8)], [["d"], ["d/f"]]);
        assert!(paths(&nodes, abi::ROOT).is_empty() && paths(&nodes, 100).is_empty());
        let walk = nodes.walks(8).remove(0);
        assert_eq!((walk.to, walk.from.id), (FileId(8), FileId(2)));
        // A directory that the kernel finds under a new name loses the old name, but a file may have both names.
        found(&nodes, 7, (abi::ROOT, b"e"), &attrs(1));
        found(&nodes, 8, (abi::ROOT, b"h"), &Attrs { kind: FileKind::Regular, ..attrs(1) });
        assert_eq!((paths(&nodes, 7), paths(&nodes, 8)), (vec!["e".into()], vec!["h".into(), "e/f".into()]));
        assert!(nodes.unnamed(abi::ROOT, b"h") && !nodes.unnamed(abi::ROOT, b"h"));
        nodes.forget(7, 2, || {});
        assert!(paths(&nodes, 8).is_empty(), "the directory is unknown");
        nodes.forget(8, 2, || {});
        nodes.forget(9, 1, || {});
        assert!(nodes.names().files.is_empty(), "a forgotten file has no names");
    }

    #[test]
    fn the_table_reports_each_entry_and_the_last_forget_of_a_file() {
        let nodes = known();
        let told = std::cell::Cell::new(0);
        let node = Node { id: FileId(9), handle: Bytes::new() };
        nodes.remember(&node, (abi::ROOT, b"g"), &attrs(1), |number| told.set(number));
        assert_eq!(told.take(), 9);
        nodes.remember(&nodes.root.clone(), (abi::ROOT, b"."), &attrs(1), |number| told.set(number));
        assert_eq!(told.take(), 0, "the kernel never forgets the root");
        nodes.forget(9, 1, || told.set(1));
        assert_eq!(told.take(), 0, "the kernel has received two entries");
        nodes.forget(9, 1, || told.set(2));
        assert_eq!(told.take(), 2);
        nodes.forget(9, 1, || told.set(3));
        assert_eq!(told.take(), 0, "the kernel has forgotten the file already");
    }

    #[test]
    fn directories_removed_by_this_mount_have_no_path() {
        let nodes = known();
        nodes.removed_here(FileId(7));
        assert!(paths(&nodes, 7).is_empty());
    }

    #[test]
    fn a_path_beyond_the_maximum_depth_is_unknown() {
        let nodes = Nodes::new(Node { id: FileId(2), handle: Bytes::new() }, 100, Duration::from_secs(1));
        for depth in 0..DEPTH_MAX as u64 + 1 {
            let dir = if depth == 0 { abi::ROOT } else { 9 + depth };
            found(&nodes, 10 + depth, (dir, b"d"), &attrs(1));
        }
        assert_eq!(nodes.walks(9 + DEPTH_MAX as u64).remove(0).names.len(), DEPTH_MAX);
        assert!(nodes.walks(10 + DEPTH_MAX as u64).is_empty());
    }

    #[test]
    fn names_follow_renames_of_this_mount() {
        let (nodes, root) = (known(), abi::ROOT);
        nodes.renamed((7, b"f"), (root, b"x"), Renaming::NoReplace);
        assert_eq!(paths(&nodes, 8), ["x"]);
        nodes.renamed((root, b"d"), (root, b"x"), Renaming::Exchange);
        assert_eq!([paths(&nodes, 7), paths(&nodes, 8)], [["x"], ["d"]]);
        nodes.renamed((root, b"g"), (7, b"g"), Renaming::Replace);
        assert_eq!(paths(&nodes, 9), ["x/g"]);
        nodes.renamed((root, b"d"), (7, b"g"), Renaming::Replace);
        assert_eq!((paths(&nodes, 8), paths(&nodes, 9)), (vec!["x/g".into()], vec![]), "the rename replaced this file");
        // A rename of one name of a file to another name of the same file changes nothing.
        found(&nodes, 8, (root, b"h"), &Attrs { kind: FileKind::Regular, ..attrs(1) });
        nodes.renamed((root, b"h"), (7, b"g"), Renaming::Replace);
        assert_eq!(paths(&nodes, 8), ["h", "x/g"]);
        nodes.renamed((root, b"unknown"), (root, b"h"), Renaming::Replace);
        assert_eq!(paths(&nodes, 8), ["x/g"]);
    }

    #[test]
    fn a_thread_gets_one_error_for_a_removed_directory() {
        let nodes = Nodes::new(Node { id: FileId(2), handle: Bytes::new() }, 100, Duration::from_secs(1));
        found(&nodes, 7, (abi::ROOT, b"f"), &attrs(1));
        let again = |pid| nodes.comes_again(7, pid);
        assert_eq!([again(5), again(5), again(5), again(6), again(6)], [false, true, true, false, true]);
        assert_eq!([again(0), again(0)], [false, false], "threads with the number 0 are unknown");
        assert!(!nodes.comes_again(8, 5) && !nodes.comes_again(8, 5));
        found(&nodes, 9, (abi::ROOT, b"f"), &attrs(1));
        nodes.removed_here(FileId(9));
        assert!(nodes.comes_again(9, 5) && nodes.comes_again(9, 0), "the removed directory has no path");
        assert_eq!(nodes.removed(7).map(|attrs| (attrs.nlink, attrs.change)), Some((0, 1)));
    }
}
