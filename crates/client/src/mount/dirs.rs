//! Directory reads with READDIR, including attributes and filehandles.

use super::names::check_answer;
use super::{Mount, Node};
use crate::compound::nfs_error;
use crate::{Error, Result};
use bytes::Bytes;
use nfs::attrs::{self, Mask};
use types::limits::PAYLOAD_MAX;
use types::{Attrs, Status};
use wire::nfs4::*;

/// Bytes requested in one READDIR: some hundred entries.
const PAGE_BYTES: u32 = 128 << 10;
const _: () = assert!((PAGE_BYTES as usize) < PAYLOAD_MAX);

const WANTED: Mask = attrs::OBJECT.or(Mask::of(&[FATTR4_RDATTR_ERROR, FATTR4_FILEHANDLE, attrs::FATTR4_WEIR_WRITER]));

/// A directory entry, with the file that it names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name.
    pub name: Bytes,
    /// Position to continue after, for [`Mount::readdir_from`].
    pub cookie: u64,
    /// The file that it names.
    pub node: Node,
    /// The attributes of the file.
    pub attrs: Attrs,
    /// Whether another client writes the file: size and times in `attrs` may be stale. [`Mount::entry_attrs`] asks
    /// again.
    pub written_elsewhere: bool,
}

/// A directory being read, page by page.
pub struct ReadDir {
    mount: Mount,
    dir: Node,
    cookie: u64,
    verifier: verifier4,
    done: bool,
}

impl Mount {
    /// Reads a directory from its beginning.
    pub fn readdir(&self, dir: &Node) -> ReadDir {
        self.readdir_from(dir, 0)
    }

    /// Reads a directory after the entry with this cookie (0: from the beginning).
    pub fn readdir_from(&self, dir: &Node, cookie: u64) -> ReadDir {
        ReadDir { mount: self.clone(), dir: dir.clone(), cookie, verifier: [0; 8], done: false }
    }

    /// Returns the current attributes of an entry: those of the directory page, unless another client may have changed
    /// them since. For a file that was removed in the meantime, returns those of the page.
    pub async fn entry_attrs(&self, entry: &Entry) -> Result<Attrs> {
        if !entry.written_elsewhere {
            return Ok(entry.attrs);
        }
        match self.getattr(&entry.node).await {
            Err(error) if matches!(error.as_status(), Some(Status::NoEnt | Status::Stale)) => Ok(entry.attrs),
            asked => asked,
        }
    }
}

impl ReadDir {
    /// Returns the next entries, in the order of their cookies, or `None` at the end. `.` and `..` are never among
    /// them. Entries that are added or removed in the meantime may or may not be seen; all other entries are seen
    /// exactly once.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Entry>>> {
        while !self.done {
            let what = "reading a directory";
            let mut compound = self.mount.compound(what);
            let args = READDIR4args {
                cookie: self.cookie,
                cookieverf: self.verifier,
                dircount: PAGE_BYTES,
                maxcount: PAGE_BYTES,
                attr_request: WANTED.to_bitmap(),
            };
            self.mount.arrive(&mut compound, &self.dir).op(OP_READDIR, &args);
            let stamp = self.mount.inner.stamp();
            let mut results = self.mount.inner.session.call(compound).await?;
            results.arrived()?;
            // The directory was opened by its name; the later pages use the open directory.
            self.mount = self.mount.expecting(Vec::new());
            let got: READDIR4resok = results.take(OP_READDIR)?;
            self.verifier = got.cookieverf;
            self.done = got.reply.eof;
            let Some(last) = got.reply.entries.last() else {
                if self.done {
                    return Ok(None);
                }
                return Err(Error::protocol(format!("{what}: the mgr returned an empty page before the end")));
            };
            if last.cookie == self.cookie {
                return Err(Error::protocol(format!("{what}: the mgr returned the same page twice")));
            }
            self.cookie = last.cookie;
            let mut page = Vec::with_capacity(got.reply.entries.len());
            for entry in got.reply.entries {
                page.extend(self.entry(entry, stamp, what)?);
            }
            // All entries of a page may have been removed in the meantime; that is not the end.
            if !page.is_empty() {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    fn entry(&self, entry: entry4, stamp: u64, what: &str) -> Result<Option<Entry>> {
        check_answer(&entry.name, what)?;
        let values = attrs::decode(&entry.attrs).map_err(|e| Error::protocol(format!("{what}: {e}")))?;
        match values.rdattr_error {
            // NFS4ERR_ACCESS: the name leads to an export that this client may not access, so the client omits the
            // name.
            Some(NFS4ERR_NOENT | NFS4ERR_STALE | NFS4ERR_ACCESS) => return Ok(None),
            Some(NFS4_OK) | None => {}
            Some(status) => return Err(nfs_error(status, what)),
        }
        let handle = values.filehandle.clone();
        let (Some(mut attrs), Some(handle)) = (values.attrs(), handle) else {
            return Err(Error::protocol(format!("{what}: the mgr's answer lacks an attribute")));
        };
        if let Some(inode) = self.mount.inner.open_inode(attrs.id) {
            attrs = inode.met(attrs, stamp);
        }
        let node = Node { id: attrs.id, handle };
        let written_elsewhere = values.weir_writer == Some(true);
        Ok(Some(Entry { name: entry.name, cookie: entry.cookie, node, attrs, written_elsewhere }))
    }
}
