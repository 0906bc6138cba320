//! File system in memory, which bare FUSE serves.

use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

/// The inode number of the root.
pub const ROOT: u64 = 1;
/// The directory offset after the entries `.` and `..`. The offset after any other entry is this constant plus the
/// entry's inode number.
pub const AFTER_DOTS: u64 = 2;

/// User id and group id of the owner of all files.
pub type Owner = (u32, u32);
/// The result of a file system operation: a value, or an errno.
pub type Found<T> = Result<T, Errno>;

/// A file or a directory.
pub struct Inode {
    pub directory: bool,
    /// Permission bits of the file.
    pub mode: u32,
    pub owner: Owner,
    pub content: Vec<u8>,
    parent: u64,
    /// Whether the file has a name, that is, whether it was not unlinked.
    named: bool,
    /// Number of lookups of the file for which the kernel has not sent FORGET.
    lookups: u64,
    names: HashMap<Vec<u8>, u64>,
    /// The names of the entries by inode number. READDIR returns the entries in this order.
    order: BTreeMap<u64, Vec<u8>>,
}

/// The files by inode number; inode numbers are not reused.
pub struct Inodes(Vec<Option<Box<Inode>>>);

fn inode(directory: bool, mode: u32, owner: Owner, parent: u64) -> Option<Box<Inode>> {
    let (names, order, content) = (HashMap::new(), BTreeMap::new(), Vec::new());
    let mode = mode & 0o7777;
    Some(Box::new(Inode { directory, mode, owner, content, parent, named: true, lookups: 0, names, order }))
}

impl Inodes {
    /// Returns a file system with an empty root directory.
    pub fn new(owner: Owner) -> Inodes {
        // Placeholder at index 0, because no file has the inode number 0.
        Inodes(vec![None, inode(true, 0o755, owner, ROOT)])
    }

    /// Returns the file with this inode number.
    pub fn get(&self, number: u64) -> Found<&Inode> {
        self.0.get(number as usize).and_then(|inode| inode.as_deref()).ok_or(Errno::NOENT)
    }

    /// Returns a mutable reference to the file with this inode number.
    pub fn get_mut(&mut self, number: u64) -> Found<&mut Inode> {
        self.0.get_mut(number as usize).and_then(|inode| inode.as_deref_mut()).ok_or(Errno::NOENT)
    }

    /// Counts a lookup of the file by the kernel; the kernel sends FORGET for each lookup later.
    pub fn told(&mut self, number: u64) -> Found<u64> {
        self.get_mut(number)?.lookups += 1;
        Ok(number)
    }

    /// Returns the inode number of the file with this name, and counts a lookup.
    pub fn lookup(&mut self, parent: u64, name: &[u8]) -> Found<u64> {
        let number = *self.get(parent)?.names.get(name).ok_or(Errno::NOENT)?;
        self.told(number)
    }

    /// Makes a file or a directory, returns its inode number, and counts a lookup.
    pub fn make(&mut self, (parent, name): (u64, &[u8]), directory: bool, mode: u32, owner: Owner) -> Found<u64> {
        let number = self.0.len() as u64;
        let dir = self.get_mut(parent)?;
        if dir.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        dir.names.insert(name.to_owned(), number);
        dir.order.insert(number, name.to_owned());
        self.0.push(inode(directory, mode, owner, parent));
        self.told(number)
    }

    /// Removes the name of a file. Frees the file when the kernel has forgotten all lookups of the file.
    pub fn remove(&mut self, parent: u64, name: &[u8]) -> Found<()> {
        let number = *self.get(parent)?.names.get(name).ok_or(Errno::NOENT)?;
        let file = self.get_mut(number)?;
        if !file.names.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        file.named = false;
        let dir = self.get_mut(parent)?;
        dir.names.remove(name);
        dir.order.remove(&number);
        self.forget(number, 0);
        Ok(())
    }

    /// Records that the kernel has forgotten `lookups` lookups of a file. Frees a file without name and lookups.
    pub fn forget(&mut self, number: u64, lookups: u64) {
        let Ok(inode) = self.get_mut(number) else { return };
        inode.lookups = inode.lookups.saturating_sub(lookups);
        if inode.lookups == 0 && !inode.named {
            self.0[number as usize] = None;
        }
    }

    /// Writes bytes to a file at an offset.
    pub fn write(&mut self, number: u64, at: usize, bytes: &[u8]) -> Found<()> {
        let content = &mut self.get_mut(number)?.content;
        if at == content.len() {
            content.extend_from_slice(bytes);
            return Ok(());
        }
        let end = at.checked_add(bytes.len()).ok_or(Errno::FBIG)?;
        if end > content.len() {
            content.resize(end, 0);
        }
        content[at..end].copy_from_slice(bytes);
        Ok(())
    }

    /// Returns at most `most` bytes of a file from an offset on.
    pub fn read(&self, number: u64, at: usize, most: usize) -> Found<&[u8]> {
        let rest = self.get(number)?.content.get(at..).unwrap_or_default();
        Ok(&rest[..rest.len().min(most)])
    }

    /// Returns the entries of a directory after a directory offset: for each entry its inode number, its name, and the
    /// offset after it.
    pub fn entries(&self, number: u64, offset: u64) -> Found<Vec<(u64, Vec<u8>, u64)>> {
        let dir = self.get(number)?;
        let dots = [(number, b".".to_vec(), 1), (dir.parent, b"..".to_vec(), AFTER_DOTS)];
        let mut entries: Vec<_> = dots.into_iter().filter(|(.., after)| *after > offset).collect();
        let behind = offset.checked_sub(AFTER_DOTS).map_or(Bound::Unbounded, Bound::Excluded);
        let others = dir.order.range((behind, Bound::Unbounded));
        entries.extend(others.map(|(number, name)| (*number, name.clone(), number + AFTER_DOTS)));
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = (0, 0);

    fn file(inodes: &mut Inodes, name: &[u8]) -> u64 {
        inodes.make((ROOT, name), false, 0o100_644, OWNER).unwrap()
    }

    #[test]
    fn what_was_written_is_there_with_zeros_between() {
        let mut inodes = Inodes::new(OWNER);
        let a = file(&mut inodes, b"a");
        inodes.write(a, 0, b"one").unwrap();
        inodes.write(a, 5, b"two").unwrap();
        inodes.write(a, 2, b"EE").unwrap();
        assert_eq!(inodes.read(a, 0, 100), Ok(&b"onEE\0two"[..]));
        assert_eq!(inodes.read(a, 6, 1), Ok(&b"w"[..]));
        assert_eq!(inodes.read(a, 9, 1), Ok(&b""[..]));
        assert_eq!(inodes.write(a, usize::MAX, b"ab"), Err(Errno::FBIG));
    }

    #[test]
    fn a_file_without_a_name_stays_until_it_is_forgotten() {
        let mut inodes = Inodes::new(OWNER);
        let a = file(&mut inodes, b"a");
        assert_eq!(inodes.lookup(ROOT, b"a"), Ok(a));
        assert_eq!(inodes.make((ROOT, b"a"), false, 0, OWNER), Err(Errno::EXIST));
        inodes.remove(ROOT, b"a").unwrap();
        assert_eq!(inodes.lookup(ROOT, b"a"), Err(Errno::NOENT));
        inodes.forget(a, 1);
        assert!(inodes.get(a).is_ok());
        inodes.forget(a, 1);
        assert!(inodes.get(a).is_err());
    }

    #[test]
    fn a_directory_is_read_on_while_entries_vanish() {
        let mut inodes = Inodes::new(OWNER);
        let all = [&b"a"[..], b"b", b"c"].map(|name| file(&mut inodes, name));
        let names = |inodes: &Inodes, offset| -> Vec<String> {
            let entries = inodes.entries(ROOT, offset).unwrap().into_iter();
            entries.map(|(_, name, _)| String::from_utf8(name).unwrap()).collect()
        };
        assert_eq!(names(&inodes, 0), [".", "..", "a", "b", "c"]);
        assert_eq!(names(&inodes, 1), ["..", "a", "b", "c"]);
        assert_eq!(names(&inodes, 2), ["a", "b", "c"]);
        let (number, _, after) = inodes.entries(ROOT, 2).unwrap().swap_remove(0);
        assert_eq!(number, all[0]);
        inodes.remove(ROOT, b"a").unwrap();
        assert_eq!(names(&inodes, after), ["b", "c"]);
        let dir = inodes.make((ROOT, b"dir"), true, 0o755, OWNER).unwrap();
        inodes.make((dir, b"in"), false, 0, OWNER).unwrap();
        assert_eq!(inodes.remove(ROOT, b"dir"), Err(Errno::NOTEMPTY));
    }
}
