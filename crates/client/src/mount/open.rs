//! Opening and creating regular files: one round trip for the open, the attributes and the layout.

use super::names::shown;
use super::{Mount, Node};
use crate::compound::{Compound, Failed};
use crate::file::{Name, Origin};
use crate::inode::layoutget;
use crate::{Error, File, Placement, Result};
use bytes::Bytes;
use std::sync::atomic::Ordering::Relaxed;
use types::{Attrs, SetAttrs, Status};
use wire::nfs4::*;

/// How to open a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// Allow reading.
    pub read: bool,
    /// Allow writing.
    pub write: bool,
    /// Cut to length 0 while opening; needs `write`.
    pub truncate: bool,
}

impl OpenFlags {
    /// For reading only.
    pub const READ: OpenFlags = OpenFlags { read: true, write: false, truncate: false };
    /// For writing only.
    pub const WRITE: OpenFlags = OpenFlags { read: false, write: true, truncate: false };
    /// For reading and writing.
    pub const READ_WRITE: OpenFlags = OpenFlags { read: true, write: true, truncate: false };

    /// The ACCESS bits that the mode has to grant.
    fn access(self) -> u32 {
        let read = if self.read { ACCESS4_READ } else { 0 };
        let write = if self.write { ACCESS4_MODIFY } else { 0 };
        read | write
    }

    fn share_access(self) -> Result<u32> {
        let access = match (self.read, self.write) {
            (true, true) => OPEN4_SHARE_ACCESS_BOTH,
            (true, false) => OPEN4_SHARE_ACCESS_READ,
            (false, true) => OPEN4_SHARE_ACCESS_WRITE,
            (false, false) => return Err(Error::usage("a file is opened for reading, writing or both")),
        };
        if self.truncate && !self.write {
            return Err(Error::usage("a file that is cut must be opened for writing"));
        }
        Ok(access | OPEN4_SHARE_ACCESS_WANT_NO_DELEG)
    }
}

/// How to create a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreateOptions {
    /// Permission bits of a new file, at most 0o7777; no umask is applied.
    pub mode: u32,
    /// Fail with `Exist` when the name is taken. Safe to repeat after a lost answer.
    pub exclusive: bool,
    /// How it is opened, and whether one that exists already is cut to length 0.
    pub open: OpenFlags,
    /// User and group of a new file, when not the caller's.
    pub owner: Option<(u32, u32)>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions { mode: 0o644, exclusive: false, open: OpenFlags::READ_WRITE, owner: None }
    }
}

/// The stateid that stands for the last one in the same COMPOUND (RFC 8881 §16.2.3.1.2).
const CURRENT: stateid4 = stateid4 { seqid: 1, other: [0; 12] };

impl Mount {
    /// Opens a regular file.
    pub async fn open(&self, node: &Node, flags: OpenFlags) -> Result<File> {
        let share_access = flags.share_access()?;
        let key = self.inner.owners.fetch_add(1, Relaxed);
        let mut compound = self.compound("opening a file").cached();
        // OPEN by filehandle lets an owner pass whatever the mode says, as NFS servers do for I/O on files that are open
        // already; open(2) does not, so the mode is asked for besides.
        let needed = flags.access();
        compound.putfh(&node.handle).op(OP_ACCESS, &ACCESS4args { access: needed });
        let openhow = openflag4::Default(OPEN4_NOCREATE);
        let claim = open_claim4::CLAIM_FH;
        compound.op(OP_OPEN, &Self::open_args(key, share_access, openhow, claim)).getfh().getattr();
        let wants_layout = match self.inner.open_inode(node.id) {
            Some(inode) => inode.wants_layout(flags.read, flags.write).await,
            None => self.inner.options.layout_at_open(),
        };
        if wants_layout {
            compound.op(OP_LAYOUTGET, &layoutget(CURRENT, flags.write));
        }
        let caller = self.caller.clone();
        let origin = Origin { key, caller, node: Some(node.clone()), name: None, flags };
        self.finish_open(compound, origin, needed, wants_layout).await.map(|(file, _)| file)
    }

    /// Opens the regular file `name` in `dir`, creating it when it is missing.
    pub async fn create(&self, dir: &Node, name: &[u8], options: CreateOptions) -> Result<File> {
        self.create_telling(dir, name, options).await.map(|(file, _)| file)
    }

    /// As [`Mount::create`], in the same round trip with the attributes that the directory has afterwards, if they could be
    /// had.
    pub async fn create_telling(
        &self,
        dir: &Node,
        name: &[u8],
        options: CreateOptions,
    ) -> Result<(File, Option<Attrs>)> {
        let (uid, gid) = options.owner.unzip();
        let attrs = nfs::attrs::encode_set(&SetAttrs { mode: Some(options.mode), uid, gid, ..SetAttrs::default() });
        let how = if options.exclusive {
            // An exclusive create is told from another one by its verifier, also after the mgr restarted.
            let mut cva_verf = [0; 8];
            getrandom::fill(&mut cva_verf).map_err(|e| Error::usage(format!("no random numbers: {e}")))?;
            createhow4::EXCLUSIVE4_1(creatverfattr { cva_verf, cva_attrs: attrs })
        } else {
            createhow4::UNCHECKED4(attrs)
        };
        let flags = options.open;
        let key = self.inner.owners.fetch_add(1, Relaxed);
        let claim = open_claim4::CLAIM_NULL(Bytes::copy_from_slice(name));
        let args = Self::open_args(key, flags.share_access()?, openflag4::OPEN4_CREATE(how), claim);
        let mut compound = self.compound(format!("creating {}", shown(name))).cached();
        compound.putfh(&dir.handle).op(OP_OPEN, &args).getfh().getattr();
        let layout = self.inner.options.layout_at_open();
        if layout {
            compound.op(OP_LAYOUTGET, &layoutget(CURRENT, flags.write));
        }
        let name = Name { dir: dir.clone(), name: Bytes::copy_from_slice(name) };
        let caller = self.caller.clone();
        let origin = Origin { key, caller, node: None, name: Some(name), flags };
        compound.putfh(&dir.handle).getattr();
        self.finish_open(compound, origin, 0, layout).await
    }

    fn open_args(key: u64, share_access: u32, openhow: openflag4, claim: open_claim4) -> OPEN4args {
        // Each open has an owner of its own, so that each has a stateid of its own.
        let owner = open_owner4 { clientid: 0, owner: Bytes::copy_from_slice(&key.to_be_bytes()) };
        OPEN4args { seqid: 0, share_access, share_deny: OPEN4_SHARE_DENY_NONE, owner, openhow, claim }
    }

    /// Sends the COMPOUND and makes a file of its answer; `needed` are the ACCESS bits it asks for before OPEN.
    async fn finish_open(
        &self,
        compound: Compound,
        origin: Origin,
        needed: u32,
        layout: bool,
    ) -> Result<(File, Option<Attrs>)> {
        let asking = self.inner.ask();
        let mut results = self.inner.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        let permitted = match needed {
            0 => true,
            _ => results.take::<ACCESS4resok>(OP_ACCESS)?.access & needed == needed,
        };
        let opened: OPEN4resok = results.take(OP_OPEN)?;
        let handle = results.handle()?;
        let attrs = results.attrs()?;
        let node = Node { id: attrs.id, handle };
        if origin.node.as_ref().is_some_and(|asked| asked.id != node.id) {
            return Err(Error::status(Status::Stale, "opening a file: the mgr opened another one"));
        }
        let got: Option<std::result::Result<LAYOUTGET4resok, Failed>> = layout.then(|| results.raw(OP_LAYOUTGET));
        // Behind a LAYOUTGET that was refused nothing was carried out.
        let dir = origin.name.as_ref().and_then(|_| results.done(&[OP_PUTFH]).and_then(|()| results.attrs()).ok());
        let inode = self.inner.inode(&node);
        inode.add_open(origin.key, origin.caller.clone(), opened.stateid, origin.flags);
        let mut size = inode.learn_size(attrs.size, asking.stamp);
        drop(asking);
        let (flags, key) = (origin.flags, origin.key);
        let file = File::new(inode, key, attrs, origin);
        if let Some(got) = got {
            file.inode().learn_layout(got).await;
        }
        if file.inode().is_doubtful() {
            size = file.inode().learn_attrs().await?.size;
        }
        if !permitted {
            // What closing says matters less than why.
            let _ = file.close().await;
            return Err(Error::status(Status::Access, "opening a file"));
        }
        if flags.truncate && size > 0 {
            file.set_len(0).await?;
        }
        Ok((file, dir))
    }

    /// Where the bytes of a regular file live.
    pub async fn placement(&self, node: &Node) -> Result<Placement> {
        let file = self.open(node, OpenFlags::READ).await?;
        let placement = file.placement().await;
        file.close().await?;
        placement
    }
}
