//! Opening and creating regular files. One round trip opens the file and gets its attributes, policy and layout.

use super::names::shown;
use super::{Mount, Node, OpenInFlight};
use crate::compound::{Failed, Results};
use crate::effective_policy::{OpenPolicy, OpenSettings, layout_at_open, parse_settings};
use crate::file::{Name, Origin};
use crate::inode::layoutget;
use crate::{Error, File, Placement, Result};
use bytes::Bytes;
use layout::policy::{self, Policy, Settings, Sharing};
use nfs::attrs::{FATTR4_WEIR_UNSYNCED, Mask};
use nfs::client::fattr;
use nfs::fs::PolicyText;
use nfs::state::delegations::WANT_DATA;
use std::sync::Arc;
use types::{Attrs, SetAttrs, Status};
use wire::nfs4::*;

/// The access mode of an open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// Truncate the file to length 0; requires `write`.
    pub truncate: bool,
    /// Open the file to execute it: checks the execute permission instead of the read permission (RFC 8881 §6.2.1.3.1).
    pub execute: bool,
}

impl OpenFlags {
    /// Open for reading only.
    pub const READ: OpenFlags = OpenFlags { read: true, write: false, truncate: false, execute: false };
    /// Open for writing only.
    pub const WRITE: OpenFlags = OpenFlags { read: false, write: true, truncate: false, execute: false };
    /// Open for reading and writing.
    pub const READ_WRITE: OpenFlags = OpenFlags { read: true, write: true, truncate: false, execute: false };

    /// Returns the ACCESS4 bits that the open requires.
    fn access(self) -> u32 {
        let read = match (self.execute, self.read) {
            (true, _) => ACCESS4_EXECUTE,
            (false, true) => ACCESS4_READ,
            (false, false) => 0,
        };
        let write = if self.write { ACCESS4_MODIFY } else { 0 };
        read | write
    }

    /// Returns the share access bits of OPEN. If `delegated`, the bits also request a delegation (RFC 8881 §18.16).
    fn share_access(self, delegated: bool) -> Result<u32> {
        let access = match (self.read, self.write) {
            (true, true) => OPEN4_SHARE_ACCESS_BOTH,
            (true, false) => OPEN4_SHARE_ACCESS_READ,
            (false, true) => OPEN4_SHARE_ACCESS_WRITE,
            (false, false) => return Err(Error::usage("a file must be opened for reading, writing or both")),
        };
        if self.truncate && !self.write {
            return Err(Error::usage("a file that is truncated at open must be opened for writing"));
        }
        let wish = if delegated { WANT_DATA } else { OPEN4_SHARE_ACCESS_WANT_NO_DELEG };
        Ok(access | wish)
    }
}

/// How to open an existing file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions<'a> {
    /// The open mode.
    pub flags: OpenFlags,
    /// The directory in which the caller found the file. The policy of this directory applies to the open. `None`: no
    /// directory policy applies.
    pub dir: Option<&'a Node>,
    /// The policy settings of this open, which override all other settings, for example [`crate::Access::Unbuffered`].
    pub policy: Settings,
    /// Requests a write delegation, which the mgr grants if no other client has the file open. See [`File::is_alone`].
    pub alone: bool,
    /// Whether the caller opens the file by a name that it looked up before. If the file has no name any more, the open
    /// fails with `Stale` and changes nothing.
    pub named: bool,
}

/// How to create a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreateOptions {
    /// Permission bits of a new file, at most 0o7777; the client applies no umask.
    pub mode: u32,
    /// Whether to fail with `Exist` if the name exists. If the reply to the create is lost, the client repeats the
    /// create, and recognizes a file that its own first request created.
    pub exclusive: bool,
    /// The access mode, and whether to truncate an existing file to length 0.
    pub open: OpenFlags,
    /// User and group of a new file; `None` means the user and group of the caller.
    pub owner: Option<(u32, u32)>,
    /// The policy settings of this open, which override all other settings.
    pub policy: Settings,
    /// Requests a write delegation, which the mgr grants if no other client has the file open. See [`File::is_alone`].
    pub alone: bool,
    /// Whether the create may return before the new file is durable. The first [`File::fsync`], [`File::flush`] or
    /// close of the file on this client makes its creation durable, and so does [`Mount::sync_names`]. If the mgr's
    /// machine loses power before the creation is durable, the file may be lost, and these calls fail with `Stale`.
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

/// The parameters of an OPEN in flight.
struct OpenRequest {
    origin: Origin,
    /// The policy settings of the server and the directory, if a GETATTR before the OPEN returned them.
    reported: Option<(Settings, Settings)>,
    /// The policy settings that the caller passed.
    policy: Settings,
    /// The ACCESS4 bits that the client requested with the ACCESS before the OPEN.
    needed: u32,
    /// Whether a LAYOUTGET follows the OPEN in the COMPOUND.
    layout: bool,
    /// Whether the open must fail if the file has no name.
    named: bool,
    /// Whether the caller requested a write delegation.
    alone: bool,
}

/// The special stateid that stands for the stateid of the previous operation in the same COMPOUND (RFC 8881
/// §16.2.3.1.2).
pub(crate) const CURRENT: stateid4 = stateid4 { seqid: 1, other: [0; 12] };

impl Mount {
    /// Opens a regular file without a directory policy.
    pub async fn open(&self, node: &Node, flags: OpenFlags) -> Result<File> {
        self.open_with(node, OpenOptions { flags, ..OpenOptions::default() }).await
    }

    /// Opens a regular file with these options. The COMPOUND with the OPEN also reads the policy settings of the
    /// directory in the options, if any.
    pub async fn open_with(&self, node: &Node, options: OpenOptions<'_>) -> Result<File> {
        match self.try_open(node, options).await? {
            Some(file) => Ok(file),
            // The directory whose policy should apply was removed, or the caller may not access this directory any
            // more. The file may still exist, so open it without a directory policy.
            None => {
                let options = OpenOptions { dir: None, ..options };
                let gone = || Error::protocol("opening a file: the mgr's answer belongs to another request");
                self.try_open(node, options).await?.ok_or_else(gone)
            }
        }
    }

    /// Opens a file; returns `None` if the mgr cannot read the policy settings of the directory.
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
        // In an OPEN by filehandle, the mgr does not check the permission bits if the caller owns the file. open(2)
        // checks them for the owner too, so the client also sends ACCESS.
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
            compound.op(OP_LAYOUTGET, &layoutget(self.inner.drivers.preferred(), CURRENT, flags.write));
        }
        let asking = self.inner.ask();
        let mut results = self.inner.session.call(compound).await?;
        let mut reported = None;
        if let Some(dir) = dir {
            let taken = results.done(&[OP_PUTFH]).and_then(|()| self.take_settings(dir, &mut results));
            match taken {
                Ok(settings) => reported = Some(settings),
                Err(_) => return Ok(None),
            }
        }
        let (caller, name) = (self.caller.clone(), None);
        let open_policy = Arc::default();
        let origin = Origin { key, caller, node: Some(node.clone()), name, flags, open_policy };
        let asked = OpenRequest { origin, reported, policy, needed, layout: wants_layout, named, alone };
        self.finish_open(results, asking, asked).await.map(|(file, _)| Some(file))
    }

    /// Predicts the policy of a file that the client is about to open. The prediction uses the cached policy settings.
    fn guess(&self, dir: Option<&Node>, open: Settings, own: Settings) -> Policy {
        let effective_policy = &self.inner.effective_policy;
        let settings = effective_policy.guess(dir.map(|dir| dir.id), open);
        effective_policy.effective(&settings, own).policy
    }

    /// Takes the policy settings of a directory from the result of a GETATTR, and caches them.
    fn take_settings(&self, dir: &Node, results: &mut Results) -> Result<(Settings, Settings)> {
        let told = results.values()?.weir_policy.unwrap_or_default();
        Ok(self.record_settings(dir, &told))
    }

    fn record_settings(&self, dir: &Node, told: &PolicyText) -> (Settings, Settings) {
        let settings = parse_settings(told, policy::Origin::Directory);
        self.inner.effective_policy.record_server_settings(settings.0);
        self.inner.effective_policy.record_directory_settings(dir.id, settings);
        settings
    }

    /// Takes the attributes and policy settings of the directory from the last results of the reply, if the reply
    /// contains these results.
    fn take_last_settings(&self, dir: &Node, results: &mut Results) -> (Option<Attrs>, Option<(Settings, Settings)>) {
        match results.done(&[OP_PUTFH]).and_then(|()| results.attrs_and_policy()) {
            Ok((attrs, told)) => (Some(attrs), told.map(|told| self.record_settings(dir, &told))),
            Err(_) => (None, None),
        }
    }

    /// Opens the regular file `name` in `dir`, and creates it if it does not exist.
    pub async fn create(&self, dir: &Node, name: &[u8], options: CreateOptions) -> Result<File> {
        self.create_telling(dir, name, options).await.map(|(file, _)| file)
    }

    /// Creates a file like [`Mount::create`]. Also returns the attributes of the directory after the creation, if the
    /// reply contains them.
    pub async fn create_telling(
        &self,
        dir: &Node,
        name: &[u8],
        options: CreateOptions,
    ) -> Result<(File, Option<Attrs>)> {
        match self.try_create(dir, name, options).await {
            // The mgr does not support the create option `unsynced`: it makes every new file durable before it replies.
            // So create the file without this option.
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
            // The mgr stores the verifier with the file, so that it recognizes a repeated exclusive create even after a
            // restart.
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
            // Ask for the policy before LAYOUTGET, because the mgr does not execute operations after a refused
            // LAYOUTGET.
            compound.getattr_of(fattr::POLICY);
        }
        compound.op(OP_OPEN, &args).getfh().getattr_of(fattr::OPENING);
        if layout {
            compound.op(OP_LAYOUTGET, &layoutget(self.inner.drivers.preferred(), CURRENT, flags.write));
        }
        let making = self.inner.makes(dir, name);
        let name = Name { dir: dir.clone(), name: Bytes::copy_from_slice(name) };
        let caller = self.caller.clone();
        compound.putfh(&dir.handle).getattr_of(if layout { fattr::ATTRS } else { fattr::OPENING });
        let asking = self.inner.ask();
        let mut results = self.inner.session.call(compound).await?;
        making.answered();
        results.arrived()?;
        let reported = if layout { Some(self.take_settings(dir, &mut results)?) } else { None };
        let origin = Origin { key, caller, node: None, name: Some(name), flags, open_policy: Arc::default() };
        let alone = options.alone;
        let asked = OpenRequest { origin, reported, policy: options.policy, needed: 0, layout, named: false, alone };
        self.finish_open(results, asking, asked).await
    }

    fn open_args(key: u64, share_access: u32, openhow: openflag4, claim: open_claim4) -> OPEN4args {
        // Each open has its own open owner, so that it has its own stateid.
        let owner = open_owner4 { clientid: 0, owner: Bytes::copy_from_slice(&key.to_be_bytes()) };
        OPEN4args { seqid: 0, share_access, share_deny: OPEN4_SHARE_DENY_NONE, owner, openhow, claim }
    }

    /// Creates the open file from the remaining results of a COMPOUND with OPEN. These results begin with the result of
    /// PUTFH for an open by filehandle, and with the result of OPEN for an open by name.
    async fn finish_open(
        &self,
        mut results: Results,
        asking: OpenInFlight<'_>,
        asked: OpenRequest,
    ) -> Result<(File, Option<Attrs>)> {
        let OpenRequest { mut origin, reported, policy, needed, layout, named, alone } = asked;
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
            return Err(Error::status(Status::Stale, "opening a file: the mgr opened another file"));
        }
        let got: Option<std::result::Result<LAYOUTGET4resok, Failed>> = layout.then(|| results.raw(OP_LAYOUTGET));
        // If the mgr refused LAYOUTGET, it did not execute the operations after LAYOUTGET, so the reply lacks the
        // results of these operations.
        let (dir, last_settings) = match &origin.name {
            Some(name) => self.take_last_settings(&name.dir, &mut results),
            None => (None, None),
        };
        let inode = self.inner.inode(&node);
        let own = parse_settings(&told.unwrap_or_default(), policy::Origin::File);
        inode.set_own(|settings| *settings = own.1);
        let (server, directory) = reported.or(last_settings).unwrap_or((own.0, Settings::default()));
        origin.open_policy = Arc::new(OpenPolicy::new(OpenSettings { server, directory, open: policy }));
        inode.opened_under(&origin.open_policy, alone);
        inode.add_open(origin.key, origin.caller.clone(), opened.stateid, origin.flags);
        if Mask::from_bitmap(&opened.attrset).0.has(FATTR4_WEIR_UNSYNCED) {
            inode.made_unsynced();
        }
        let learnt = inode.record_delegation(&opened.delegation, &asking);
        if learnt.again {
            // The granted delegation is useless, because the client is returning or has returned the same delegation.
            // So request another delegation: without a delegation, all I/O would bypass the page cache as long as the
            // file is open. Box the future, because the request is rare.
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
            // Return the error of the open, and ignore an error of the close. Box the future of the close, which is
            // large and rarely needed.
            let _ = Box::pin(file.close()).await;
            return Err(Error::status(status, "opening a file"));
        }
        if flags.truncate && size > 0 {
            Box::pin(file.set_len(0)).await?;
        }
        Ok((file, dir))
    }

    /// Returns the servers that store the bytes of a regular file.
    pub async fn placement(&self, node: &Node) -> Result<Placement> {
        let file = self.open(node, OpenFlags::READ).await?;
        let placement = file.placement().await;
        file.close().await?;
        placement
    }
}
