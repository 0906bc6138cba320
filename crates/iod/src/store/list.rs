//! Walking over all objects of a store.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use types::FileId;
use wire::native::{Failure, LIST_MAX, ListEntry, ListReply};

use super::head::{HEAD_LEN, Head};
use super::shards::Shards;
use super::{Store, failure};

impl Store {
    /// The objects behind `after` (0: from the start) in the order of folders, at most `max`.
    ///
    /// Damaged files are left out and logged. Objects that come and go during a walk may or may not be met.
    pub(crate) fn list(&self, after: u64, max: u32) -> Result<ListReply, Failure> {
        let max = (max as usize).clamp(1, LIST_MAX);
        let start = (after != 0).then(|| Shards::order(FileId(after)));
        let mut reply = ListReply { entries: Vec::new(), eof: true };
        for high in folders(self.shards.root())? {
            if start.is_some_and(|(folder, _)| high < folder >> 8) {
                continue;
            }
            let path = self.shards.root().join(format!("{high:02x}"));
            for low in folders(&path)? {
                let number = high << 8 | low;
                if start.is_some_and(|(folder, _)| number < folder) {
                    continue;
                }
                let mut objects = files(&path.join(format!("{low:02x}")), number)?;
                objects.retain(|object| start.is_none_or(|start| Shards::order(*object) > start));
                objects.sort_unstable();
                for object in objects {
                    if reply.entries.len() == max {
                        reply.eof = false;
                        return Ok(reply);
                    }
                    reply.entries.extend(self.entry(object)?);
                }
            }
        }
        Ok(reply)
    }

    /// The entry of one object, `None` when it is gone, damaged, or was never committed.
    fn entry(&self, object: FileId) -> Result<Option<ListEntry>, Failure> {
        let read = || -> io::Result<_> {
            let file = File::open(self.shards.path(object))?;
            let meta = file.metadata()?;
            let mut head = vec![0; meta.len().min(HEAD_LEN) as usize];
            file.read_exact_at(&mut head, 0)?;
            Ok((meta, head))
        };
        let (meta, head) = match read() {
            Ok(found) => found,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof) => return Ok(None),
            Err(e) => return Err(failure(&e, "read the head of an object")),
        };
        match Head::decode(&head, self.fsid, object) {
            Ok(Some(head)) => Ok(Some(ListEntry {
                object,
                size: meta.len() - HEAD_LEN,
                allocated: meta.blocks() * 512,
                generation: head.generation,
            })),
            Ok(None) => Ok(None),
            Err(reason) => {
                tracing::warn!(object = object.0, reason, "damaged object left out of the list");
                Ok(None)
            }
        }
    }
}

/// The names in a folder; none when it is not there.
fn names(path: &Path) -> Result<Vec<String>, Failure> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failure(&e, "list a folder")),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| failure(&e, "list a folder"))?.file_name();
        names.extend(name.into_string());
    }
    Ok(names)
}

/// The numbers of the folders below `path`, in order.
fn folders(path: &Path) -> Result<Vec<u16>, Failure> {
    let mut numbers: Vec<u16> = names(path)?
        .iter()
        .filter(|name| name.len() == 2 && !name.bytes().any(|b| b.is_ascii_uppercase()))
        .filter_map(|name| u16::from_str_radix(name, 16).ok())
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The objects with a file in folder `number`.
fn files(path: &Path, number: u16) -> Result<Vec<FileId>, Failure> {
    Ok(names(path)?.iter().filter_map(|name| Shards::object_of(number, name)).collect())
}
