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

/// The size of the reply to one READDIR in bytes, enough for some hundred entries.
const PAGE_BYTES: u32 = 128 << 10;
const _: () = assert!((PAGE_BYTES as usize) < PAYLOAD_MAX);

const WANTED: Mask = attrs::OBJECT.or(Mask::of(&[FATTR4_RDATTR_ERROR, FATTR4_FILEHANDLE, attrs::FATTR4_WEIR_WRITER]));

/// A directory entry and the attributes of its file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name of the entry.
    pub name: Bytes,
    /// The cookie of the entry (RFC 8881 §18.23). [`Mount::readdir_from`] with this cookie continues after the entry.
    pub cookie: u64,
    /// The node (id and filehandle) of the file.
    pub node: Node,
    /// The attributes of the file.
    pub attrs: Attrs,
    /// Whether another client writes the file, so that the size and times in `attrs` may be outdated.
    /// [`Mount::entry_attrs`] then asks the mgr again.
    pub written_elsewhere: bool,
}

/// An iteration over a directory, page by page.
pub struct ReadDir {
    mount: Mount,
    dir: Node,
    cookie: u64,
    verifier: verifier4,
    done: bool,
}

impl Mount {
    /// Begins to read a directory, from its first entry.
    pub fn readdir(&self, dir: &Node) -> ReadDir {
        self.readdir_from(dir, 0)
    }

    /// Begins to read a directory after the entry with this cookie. With cookie 0, begins at the first entry.
    pub fn readdir_from(&self, dir: &Node, cookie: u64) -> ReadDir {
        ReadDir { mount: self.clone(), dir: dir.clone(), cookie, verifier: [0; 8], done: false }
    }

    /// Returns the current attributes of an entry. Asks the mgr only if another client may have changed the attributes
    /// since READDIR returned the entry. If the file was removed since then, returns the attributes from READDIR.
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
    /// Returns the entries of the next page in the order of their cookies, or `None` at the end of the directory. Never
    /// returns `.` and `..`. An entry that is added or removed during the iteration may or may not be returned. Every
    /// other entry is returned exactly once.
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
            // Check the path of the directory only for the first page. The following pages come from the same
            // directory, even if its path leads to another directory by then.
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
            // Other clients may have removed all entries of the page, so an empty page is not the end of the directory.
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
            // NFS4ERR_ACCESS means that the name leads to an export that this client may not access. The client omits
            // the entry.
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
