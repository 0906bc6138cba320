//! Opening and creating regular files: one round trip for the open, the attributes and the layout.

use super::names::shown;
use super::{Asking, Mount, Node};
use crate::compound::{Failed, Results};
use crate::file::{Name, Origin};
use crate::governor::{Ruling, Words, heard, layout_at_open};
use crate::inode::layoutget;
use crate::{Error, File, Placement, Result};
use bytes::Bytes;
use layout::policy::{self, Policy, Settings, Sharing};
use nfs::attrs::{FATTR4_WEIR_UNSYNCED, Mask};
use nfs::client::fattr;
use nfs::fs::Told;
use nfs::state::delegations::WANT_DATA;
use std::sync::Arc;
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
    /// It is read to be run: takes the right to execute it instead of that to read it (RFC 8881 §6.2.1.3.1).
    pub execute: bool,
}

impl OpenFlags {
    /// For reading only.
    pub const READ: OpenFlags = OpenFlags { read: true, write: false, truncate: false, execute: false };
    /// For writing only.
    pub const WRITE: OpenFlags = OpenFlags { read: false, write: true, truncate: false, execute: false };
    /// For reading and writing.
    pub const READ_WRITE: OpenFlags = OpenFlags { read: true, write: true, truncate: false, execute: false };

    /// The ACCESS bits that the mode has to grant.
    fn access(self) -> u32 {
        let read = match (self.execute, self.read) {
            (true, _) => ACCESS4_EXECUTE,
            (false, true) => ACCESS4_READ,
            (false, false) => 0,
        };
        let write = if self.write { ACCESS4_MODIFY } else { 0 };
        read | write
    }

    /// The share bits, with the wish for a delegation of the data if `delegated`.
    fn share_access(self, delegated: bool) -> Result<u32> {
        let access = match (self.read, self.write) {
            (true, true) => OPEN4_SHARE_ACCESS_BOTH,
            (true, false) => OPEN4_SHARE_ACCESS_READ,
            (false, true) => OPEN4_SHARE_ACCESS_WRITE,
            (false, false) => return Err(Error::usage("a file is opened for reading, writing or both")),
        };
        if self.truncate && !self.write {
            return Err(Error::usage("a file that is cut must be opened for writing"));
        }
        let wish = if delegated { WANT_DATA } else { OPEN4_SHARE_ACCESS_WANT_NO_DELEG };
        Ok(access | wish)
    }
}

/// How to open a file that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions<'a> {
    /// What for.
    pub flags: OpenFlags,
    /// The directory whose policy counts for it: that of the name by which it was found. Without one, none does.
    pub dir: Option<&'a Node>,
    /// How it is to be used, over everything that others say: hints, such as [`crate::Access::ODirect`].
    pub policy: Settings,
    /// Have it alone if nobody else has it: for reading and writing. See [`File::is_alone`].
    pub alone: bool,
    /// It is opened by a name that was found before: fails with `Stale`, and changes nothing, if it has none left.
    pub named: bool,
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
    /// How it is to be used, over everything that others say.
    pub policy: Settings,
    /// Have it alone if nobody else has it: for reading and writing. See [`File::is_alone`].
    pub alone: bool,
    /// Do not wait until a new file is durable: the first [`File::fsync`], [`File::flush`] or close of it here sees to that, and so does
    /// [`Mount::sync_names`]. If the mgr's machine loses power before, the file may be gone, and those fail with `Stale`.
    pub unsynced: bool,
}

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions {
            mode: 0o644,
            exclusive: false,
            open: OpenFlags::READ_WRITE,
            owner: None,
            policy: Settings::default(),
            alone: false,
            unsynced: false,
        }
    }
}

/// An open that was sent.
struct Asked {
    origin: Origin,
    /// What server and directory said about the use of the file.
    said: Option<(Settings, Settings)>,
    /// The hint of who opens it.
    policy: Settings,
    /// The ACCESS bits that were asked for before OPEN.
    needed: u32,
    /// Whether a layout was asked for behind it.
    layout: bool,
    /// Whether the file must have a name.
    named: bool,
    /// Whether it is to be had alone.
    alone: bool,
}

/// The stateid that stands for the last one in the same COMPOUND (RFC 8881 §16.2.3.1.2).
pub(crate) const CURRENT: stateid4 = stateid4 { seqid: 1, other: [0; 12] };

impl Mount {
    /// Opens a regular file.
    pub async fn open(&self, node: &Node, flags: OpenFlags) -> Result<File> {
        self.open_with(node, OpenOptions { flags, ..OpenOptions::default() }).await
    }

    /// Opens a regular file by the policy of a directory, and with hints of its own. What the directory says comes in the same
    /// round trip.
    pub async fn open_with(&self, node: &Node, options: OpenOptions<'_>) -> Result<File> {
        match self.try_open(node, options).await? {
            Some(file) => Ok(file),
            // The directory is gone, or nobody may come near it any more. The file may still be there.
            None => {
                let options = OpenOptions { dir: None, ..options };
                let gone = || Error::protocol("opening a file: the mgr answered for another request");
                self.try_open(node, options).await?.ok_or_else(gone)
            }
        }
    }

    /// Opens a file, unless it turns out that its directory cannot be asked.
    async fn try_open(&self, node: &Node, options: OpenOptions<'_>) -> Result<Option<File>> {
        let OpenOptions { flags, dir, policy, alone, named } = options;
        let inode = self.inner.open_inode(node.id);
        let own = inode.as_ref().map(|inode| inode.own()).unwrap_or_default();
        let guess = self.guess(dir, policy, own);
        let share_access = flags.share_access(alone || guess.sharing == Sharing::Coherent)?;
        let key = self.inner.next_owner();
        let mut compound = self.compound("opening a file").cached();
        if let Some(dir) = dir {
            compound.putfh(&dir.handle).getattr_of(fattr::POLICY);
        }
        // OPEN by filehandle lets an owner pass whatever the mode says, as NFS servers do for I/O on files that are open
        // already; open(2) does not, so the mode is asked for besides.
        let needed = flags.access();
        self.arrive(&mut compound, node).op(OP_ACCESS, &ACCESS4args { access: needed });
        let openhow = openflag4::Default(OPEN4_NOCREATE);
        let claim = open_claim4::CLAIM_FH;
        compound.op(OP_OPEN, &Self::open_args(key, share_access, openhow, claim)).getfh().getattr_of(fattr::OPENING);
        let at_open = self.inner.options.direct && layout_at_open(&guess);
        let wants_layout = match inode {
            Some(inode) => at_open && inode.wants_layout(flags.read, flags.write).await,
            None => at_open,
        };
        if wants_layout {
            compound.op(OP_LAYOUTGET, &layoutget(CURRENT, flags.write));
        }
        let asking = self.inner.ask();
        let mut results = self.inner.session.call(compound).await?;
        let mut said = None;
        if let Some(dir) = dir {
            let heard = results.done(&[OP_PUTFH]).and_then(|()| self.hear(dir, &mut results));
            match heard {
                Ok(words) => said = Some(words),
                Err(_) => return Ok(None),
            }
        }
        let (caller, name) = (self.caller.clone(), None);
        let ruling = Arc::default();
        let origin = Origin { key, caller, node: Some(node.clone()), name, flags, ruling };
        let asked = Asked { origin, said, policy, needed, layout: wants_layout, named, alone };
        self.finish_open(results, asking, asked).await.map(|(file, _)| Some(file))
    }

    /// The policy of a file that is about to be opened, as far as that can be known before the mgr tells it.
    fn guess(&self, dir: Option<&Node>, open: Settings, own: Settings) -> Policy {
        let governor = &self.inner.governor;
        let words = governor.guess(dir.map(|dir| dir.id), open);
        governor.effective(&words, own).policy
    }

    /// What a directory said about the use of its files, in answer to a GETATTR.
    fn hear(&self, dir: &Node, results: &mut Results) -> Result<(Settings, Settings)> {
        let told = results.values()?.weir_policy.unwrap_or_default();
        Ok(self.heard(dir, &told))
    }

    fn heard(&self, dir: &Node, told: &Told) -> (Settings, Settings) {
        let words = heard(told, policy::Origin::Directory);
        self.inner.governor.heard_server(words.0);
        self.inner.governor.heard_directory(dir.id, words);
        words
    }

    /// The attributes of a directory in which a file was made, and what it said about the use of its files, as far as they could
    /// be had at the end.
    fn hear_last(&self, dir: &Node, results: &mut Results) -> (Option<Attrs>, Option<(Settings, Settings)>) {
        match results.done(&[OP_PUTFH]).and_then(|()| results.attrs_and_policy()) {
            Ok((attrs, told)) => (Some(attrs), told.map(|told| self.heard(dir, &told))),
            Err(_) => (None, None),
        }
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
        match self.try_create(dir, name, options).await {
            // An mgr that knows no other way than to wait.
            Err(error) if options.unsynced && error.is(Status::AttrNotSupp) => {
                self.try_create(dir, name, CreateOptions { unsynced: false, ..options }).await
            }
            outcome => outcome,
        }
    }

    async fn try_create(&self, dir: &Node, name: &[u8], options: CreateOptions) -> Result<(File, Option<Attrs>)> {
        let (uid, gid) = options.owner.unzip();
        let attrs = SetAttrs { mode: Some(options.mode), uid, gid, ..SetAttrs::default() };
        let attrs = nfs::attrs::encode_new(&attrs, options.unsynced);
        let key = self.inner.next_owner();
        let how = if options.exclusive {
            // An exclusive create is told from another one by its verifier, also after the mgr restarted.
            let cva_verf = self.inner.session.verifier().wrapping_add(key).to_be_bytes();
            createhow4::EXCLUSIVE4_1(creatverfattr { cva_verf, cva_attrs: attrs })
        } else {
            createhow4::UNCHECKED4(attrs)
        };
        let flags = options.open;
        let claim = open_claim4::CLAIM_NULL(Bytes::copy_from_slice(name));
        let guess = self.guess(Some(dir), options.policy, Settings::default());
        let share_access = flags.share_access(options.alone || guess.sharing == Sharing::Coherent)?;
        let args = Self::open_args(key, share_access, openflag4::OPEN4_CREATE(how), claim);
        let mut compound = self.compound(format!("creating {}", shown(name))).cached().makes();
        let layout = self.inner.options.direct && layout_at_open(&guess);
        self.arrive(&mut compound, dir);
        if layout {
            // Behind a LAYOUTGET that is refused nothing is asked any more.
            compound.getattr_of(fattr::POLICY);
        }
        compound.op(OP_OPEN, &args).getfh().getattr_of(fattr::OPENING);
        if layout {
            compound.op(OP_LAYOUTGET, &layoutget(CURRENT, flags.write));
        }
        let making = self.inner.makes(dir, name);
        let name = Name { dir: dir.clone(), name: Bytes::copy_from_slice(name) };
        let caller = self.caller.clone();
        compound.putfh(&dir.handle).getattr_of(if layout { fattr::ATTRS } else { fattr::OPENING });
        let asking = self.inner.ask();
        let mut results = self.inner.session.call(compound).await?;
        making.answered();
        results.arrived()?;
        let said = if layout { Some(self.hear(dir, &mut results)?) } else { None };
        let origin = Origin { key, caller, node: None, name: Some(name), flags, ruling: Arc::default() };
        let alone = options.alone;
        let asked = Asked { origin, said, policy: options.policy, needed: 0, layout, named: false, alone };
        self.finish_open(results, asking, asked).await
    }

    fn open_args(key: u64, share_access: u32, openhow: openflag4, claim: open_claim4) -> OPEN4args {
        // Each open has an owner of its own, so that each has a stateid of its own.
        let owner = open_owner4 { clientid: 0, owner: Bytes::copy_from_slice(&key.to_be_bytes()) };
        OPEN4args { seqid: 0, share_access, share_deny: OPEN4_SHARE_DENY_NONE, owner, openhow, claim }
    }

    /// Makes a file of the answer, from PUTFH of what is opened by filehandle, or OPEN of what is opened by name.
    async fn finish_open(
        &self,
        mut results: Results,
        asking: Asking<'_>,
        asked: Asked,
    ) -> Result<(File, Option<Attrs>)> {
        let Asked { mut origin, said, policy, needed, layout, named, alone } = asked;
        if origin.node.is_some() {
            results.arrived()?;
        }
        let permitted = match needed {
            0 => true,
            _ => results.take::<ACCESS4resok>(OP_ACCESS)?.access & needed == needed,
        };
        let opened: OPEN4resok = results.take(OP_OPEN)?;
        let handle = results.handle()?;
        let (attrs, told) = results.attrs_and_policy()?;
        let node = Node { id: attrs.id, handle };
        if origin.node.as_ref().is_some_and(|wanted| wanted.id != node.id) {
            return Err(Error::status(Status::Stale, "opening a file: the mgr opened another one"));
        }
        let got: Option<std::result::Result<LAYOUTGET4resok, Failed>> = layout.then(|| results.raw(OP_LAYOUTGET));
        // Behind a LAYOUTGET that was refused nothing was carried out.
        let (dir, heard_last) = match &origin.name {
            Some(name) => self.hear_last(&name.dir, &mut results),
            None => (None, None),
        };
        let inode = self.inner.inode(&node);
        let own = heard(&told.unwrap_or_default(), policy::Origin::File);
        inode.set_own(|settings| *settings = own.1);
        let (server, directory) = said.or(heard_last).unwrap_or((own.0, Settings::default()));
        origin.ruling = Arc::new(Ruling::new(Words { server, directory, open: policy }));
        inode.opened_under(&origin.ruling, alone);
        inode.add_open(origin.key, origin.caller.clone(), opened.stateid, origin.flags);
        if Mask::from_bitmap(&opened.attrset).0.has(FATTR4_WEIR_UNSYNCED) {
            inode.made_unsynced();
        }
        let learnt = inode.learn_delegation(&opened.delegation, &asking);
        if learnt.again {
            // Without one it would be used past the page cache for as long as it is open. Apart, as it is rare.
            Box::pin(inode.ask_when_returned()).await;
        }
        let mut size = inode.learn_size(attrs.size, learnt.stamp);
        let number = asking.number;
        drop(asking);
        let (flags, key) = (origin.flags, origin.key);
        let file = File::new(inode, key, attrs, origin);
        if let Some(got) = got {
            file.inode().learn_layout(got, number).await;
        }
        if file.inode().is_doubtful() {
            size = file.inode().learn_attrs().await?.size;
        }
        let nameless = named && attrs.nlink == 0;
        if nameless || !permitted {
            let status = if nameless { Status::Stale } else { Status::Access };
            // What closing says matters less than why. Apart, as below: hardly an open gets there, and each would carry room for it.
            let _ = Box::pin(file.close()).await;
            return Err(Error::status(status, "opening a file"));
        }
        if flags.truncate && size > 0 {
            Box::pin(file.set_len(0)).await?;
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
