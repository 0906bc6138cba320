//! LIST on an iod: a walk over all objects of a store.

use std::io;

use types::{FileId, Generation, ObjectId};
use wire::native::{Failure, HeadState, LIST_MAX, ListEntry, ListReply};

use super::format::OBJECTS;
use super::head::{HEAD_LEN, Head};
use super::shards::Shards;
use super::{Store, failure};
use crate::disks::{Disk, read_full};

impl Store {
    /// Returns at most `max` objects that follow the object `after`, in the order of folder numbers and then of object
    /// ids.
    ///
    /// The list includes object files without a usable header, and returns the states of their headers. An object that
    /// is created or removed during a walk of several calls may be listed or not.
    pub(crate) fn list(&self, after: Option<ObjectId>, max: u32) -> Result<ListReply, Failure> {
        let max = (max as usize).clamp(1, LIST_MAX);
        let mut reply = ListReply { entries: Vec::new(), eof: true };
        self.walk(after, |object| {
            // The previous LIST call has already returned this object, so skip the object.
            if after == Some(object) {
                return Ok(true);
            }
            if reply.entries.len() == max {
                reply.eof = false;
                return Ok(false);
            }
            reply.entries.extend(self.entry(object)?);
            Ok(true)
        })?;
        Ok(reply)
    }

    /// Calls `visit` for each object that has a file, damaged or not. Calls `visit` in the order of folder numbers,
    /// then of object ids. Begins at `start`, and ends when `visit` returns false.
    pub(super) fn walk(
        &self,
        start: Option<ObjectId>,
        mut visit: impl FnMut(ObjectId) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let disk = self.disk();
        let start = start.map(Shards::order);
        for high in folders(disk, OBJECTS)? {
            if start.is_some_and(|(folder, _)| high < folder >> 8) {
                continue;
            }
            let path = format!("{OBJECTS}/{high:02x}");
            for low in folders(disk, &path)? {
                let number = high << 8 | low;
                if start.is_some_and(|(folder, _)| number < folder) {
                    continue;
                }
                let mut objects = files(disk, &format!("{path}/{low:02x}"), number)?;
                objects.retain(|object| start.is_none_or(|start| Shards::order(*object) >= start));
                objects.sort_unstable();
                for object in objects {
                    if !visit(object)? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the objects of a file that have an object file, damaged or not.
    pub(super) fn objects_of(&self, file: FileId) -> Result<Vec<ObjectId>, Failure> {
        let index = ObjectId::index(file);
        let (number, _) = Shards::order(index);
        let mut objects = files(self.disk(), self.leaf(index).path(), number)?;
        objects.retain(|object| object.file == file);
        Ok(objects)
    }

    /// Returns the entry of an object for the LIST reply. Returns `None` if the object was removed during the walk or
    /// was never committed.
    fn entry(&self, object: ObjectId) -> Result<Option<ListEntry>, Failure> {
        let read = || -> io::Result<_> {
            let file = self.open_object(object)?;
            let measure = file.measure()?;
            let mut head = vec![0; measure.len.min(HEAD_LEN) as usize];
            let len = read_full(&*file, &mut head, 0)?;
            head.truncate(len);
            Ok((measure, head))
        };
        let (measure, head) = match read() {
            Ok(found) => found,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failure(&e, "read the head of an object")),
        };
        let entry = |generation, head| ListEntry {
            object,
            size: measure.len.saturating_sub(HEAD_LEN),
            allocated: measure.allocated,
            generation,
            head,
        };
        Ok(match Head::decode(&head, self.fsid, object) {
            Ok(head) => head.map(|head| entry(head.generation, HeadState::Own)),
            Err(bad) => Some(entry(Generation::default(), bad.state)),
        })
    }
}

/// Returns the names in a folder, or an empty list if the folder does not exist.
fn names(disk: &dyn Disk, path: &str) -> Result<Vec<String>, Failure> {
    match disk.list(path) {
        Ok(names) => Ok(names),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(failure(&e, "list a folder")),
    }
}

/// Returns the numbers of the subfolders of `path`, sorted.
fn folders(disk: &dyn Disk, path: &str) -> Result<Vec<u16>, Failure> {
    let mut numbers: Vec<u16> = names(disk, path)?
        .iter()
        .filter(|name| name.len() == 2 && !name.bytes().any(|b| b.is_ascii_uppercase()))
        .filter_map(|name| u16::from_str_radix(name, 16).ok())
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Returns the objects that have a file in folder `number`, sorted.
fn files(disk: &dyn Disk, path: &str, number: u16) -> Result<Vec<ObjectId>, Failure> {
    Ok(names(disk, path)?.iter().filter_map(|name| Shards::object_of(number, name)).collect())
}
