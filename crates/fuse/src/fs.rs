//! The state that all requests of a mounted file system share.

use crate::Errno;
use crate::abi::{self, opcode};
use crate::callers::Callers;
use crate::coherence::recent_attrs::{Mark, RecentAttrs};
use crate::coherence::set_sizes::Resizing;
use crate::coherence::write_back::{NotAlone, Recalled, WriteBack};
use crate::coherence::writers::Writing;
use crate::config::Config;
use crate::nodes::Nodes;
use crate::open_unlink_race::OpenUnlinkRaces;
use crate::opens::Opens;
use crate::read_ahead::ReadAhead;
use crate::reply::{Body, Lifetimes, Reply};
use crate::request::Header;
use crate::rewalks::Rewalks;
use crate::transport::Transport;
use client::{Access, File, Mount, Node, OpenFlags, Settings};
use rustix::fs::OFlags;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use types::{Attrs, FileId, FileKind};

/// The result of an operation: a reply or an errno.
pub(crate) type Answer = Result<Reply, Errno>;

/// Encodes attributes as the reply to this request, valid for `valid`.
pub(crate) fn told(header: &Header, attrs: &Attrs, valid: Duration) -> Reply {
    match header.opcode {
        opcode::STATX => crate::reply::statx(attrs, valid),
        _ => crate::reply::attributes(attrs, valid),
    }
}

/// The mounted file system.
pub(crate) struct FileSystem {
    pub(crate) callers: Callers,
    pub(crate) config: Config,
    pub(crate) nodes: Nodes,
    pub(crate) opens: Opens,
    /// Whether the mount, not the kernel, clears setuid and setgid bits on a write.
    pub(crate) drops_privileges: AtomicBool,
    pub(crate) recent_attrs: RecentAttrs,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) open_unlink_races: OpenUnlinkRaces,
    pub(crate) rewalks: Rewalks,
    pub(crate) resizing: Resizing,
    pub(crate) write_back: WriteBack,
    own: Weak<FileSystem>,
    transport: OnceLock<Weak<dyn Transport>>,
}

impl FileSystem {
    /// Creates the file system below `root` of a mount.
    ///
    /// # Errors
    /// Another file system on this client already caches the files of the client.
    pub(crate) fn new(mount: Mount, root: Node, config: Config) -> client::Result<Arc<Self>> {
        let nodes = Nodes::new(root, config.known_files, config.entry_valid);
        let callers = Callers::new(mount);
        let write_back = WriteBack::new(config.writeback);
        let fs = Arc::new_cyclic(|own| FileSystem {
            callers,
            config,
            nodes,
            opens: Opens::default(),
            drops_privileges: AtomicBool::default(),
            recent_attrs: RecentAttrs::default(),
            read_ahead: ReadAhead::default(),
            open_unlink_races: OpenUnlinkRaces::default(),
            rewalks: Rewalks::default(),
            resizing: Resizing::default(),
            write_back,
            own: own.clone(),
            transport: OnceLock::new(),
        });
        fs.callers.anybody().keep_with(Arc::new(Recalled(fs.own.clone())))?;
        Ok(fs)
    }

    /// Returns a shared reference to this file system, while one exists.
    pub(crate) fn shared(&self) -> Option<Arc<FileSystem>> {
        self.own.upgrade()
    }

    /// Sets the transport that carries notifications to the kernel.
    pub(crate) fn connect(&self, transport: &Arc<dyn Transport>) {
        let _ = self.transport.set(Arc::downgrade(transport));
    }

    /// Returns the transport that carries notifications to the kernel, while it exists.
    pub(crate) fn transport(&self) -> Option<Arc<dyn Transport>> {
        self.transport.get().and_then(Weak::upgrade)
    }

    /// Records that the kernel has forgotten files.
    pub(crate) fn forget(&self, nodes: &[(u64, u64)]) {
        nodes.iter().for_each(|(node, lookups)| self.nodes.forget(*node, *lookups));
    }

    /// Returns the mount with the credentials of the caller.
    pub(crate) fn acting(&self, header: &Header) -> Mount {
        self.callers.of(header)
    }

    /// Returns the file that a request is about.
    pub(crate) fn node(&self, header: &Header) -> Result<Node, Errno> {
        self.nodes.get(header.node)
    }

    /// Returns whether other clients may write a file that is open here. The kernel then asks for its attributes each
    /// time, and what the kernel has cached of the file cannot be trusted.
    pub(crate) fn is_shared(&self, number: u64) -> bool {
        self.write_back.is_shared(number) || self.callers.anybody().is_shared(FileId(number))
    }

    /// Returns how long the kernel may cache a name and the attributes of a file. Attributes of a shared file are not
    /// cached.
    fn lifetimes(&self, number: u64) -> Lifetimes {
        let attrs = if self.is_shared(number) { Duration::ZERO } else { self.config.attrs_valid };
        Lifetimes { entry: self.config.entry_valid, attrs }
    }

    /// Appends an entry: the file for which a name in the request's directory stands. The kernel knows the file from
    /// then on.
    pub(crate) fn entry(&self, body: Body, header: &Header, name: &[u8], (node, attrs): (&Node, &Attrs)) -> Body {
        self.entry_for(body, (header, name), (node, attrs), (false, None))
    }

    /// As [`FileSystem::entry`], for a new name. Where the file is written to the page cache, as
    /// [`FileSystem::attributes_changed`].
    pub(crate) fn entry_made(&self, body: Body, header: &Header, name: &[u8], (node, attrs): (&Node, &Attrs)) -> Body {
        let written = self.write_back.is_written(node.id.0);
        self.entry_for(body, (header, name), (node, attrs), (written, None))
    }

    /// As [`FileSystem::entry`], for a file whose attributes were requested after `mark`, by a request for nothing but
    /// attributes.
    pub(crate) fn entry_found(
        &self,
        body: Body,
        (header, name): (&Header, &[u8]),
        (node, attrs): (&Node, &Attrs),
        mark: Option<Mark>,
    ) -> Body {
        self.entry_for(body, (header, name), (node, attrs), (false, mark))
    }

    /// As [`FileSystem::entry`], for a directory entry whose page was requested after `mark`. If another client may
    /// have changed the file since, the kernel has to ask for its attributes.
    pub(crate) fn entry_listed(&self, body: Body, header: &Header, entry: &client::Entry, mark: Option<Mark>) -> Body {
        self.entry_for(body, (header, &entry.name), (&entry.node, &entry.attrs), (entry.written_elsewhere, mark))
    }

    fn entry_for(
        &self,
        body: Body,
        (header, name): (&Header, &[u8]),
        (node, attrs): (&Node, &Attrs),
        (written, found): (bool, Option<Mark>),
    ) -> Body {
        let number = self.nodes.remember(node, (header.node, name), attrs);
        self.believes(number, attrs);
        self.keep_pages(number, attrs);
        let mut lifetimes = self.lifetimes(number);
        if attrs.kind == FileKind::Symlink {
            // The kernel follows a symbolic link without a request, so the mount could not check the path of the link.
            lifetimes.entry = Duration::ZERO;
        }
        // A kernel that does not know the file yet cannot be notified before this answer that other clients want the
        // file.
        if written || self.needs_correction(header.pid, number, attrs) {
            // A program that needs attributes then sends GETATTR, and the kernel is corrected before the answer.
            lifetimes.attrs = Duration::ZERO;
        }
        if let Some(mark) = found.filter(|_| !lifetimes.attrs.is_zero()) {
            self.recent_attrs.tell(number, attrs, mark);
        }
        crate::reply::entry(body, number, attrs, lifetimes)
    }

    /// Returns the attributes of a file for the kernel.
    pub(crate) fn attributes(&self, header: &Header, attrs: &Attrs) -> Reply {
        self.believes(header.node, attrs);
        self.attributes_for(header, attrs, self.lifetimes(header.node).attrs)
    }

    /// As [`FileSystem::attributes`], after a change that the kernel has requested. The kernel accepts such an answer
    /// even if it received other attributes meanwhile. So the answer must not give a lifetime to a size that other
    /// clients may have changed by then.
    pub(crate) fn attributes_changed(&self, header: &Header, attrs: &Attrs) -> Reply {
        self.believes_surely(header.node, attrs);
        let written = self.write_back.is_written(header.node);
        let valid = if written { Duration::ZERO } else { self.lifetimes(header.node).attrs };
        self.attributes_for(header, attrs, valid)
    }

    /// Records that the kernel receives these attributes. It drops an answer if it has changed its own attributes of
    /// the file since it asked, so a new size may or may not reach its cache. A kernel that writes back takes sizes
    /// from no answer.
    fn believes(&self, number: u64, attrs: &Attrs) {
        if !self.write_back.is_on() && !self.nodes.believes_size(number, attrs.size) {
            self.may_believe_more(number);
        }
    }

    /// As [`FileSystem::believes`], in the answer to SETATTR or an open that truncates: the kernel never drops that
    /// answer.
    pub(crate) fn believes_surely(&self, number: u64, attrs: &Attrs) {
        if !self.write_back.is_on() {
            self.nodes.believe(number, Some(attrs));
        }
    }

    /// As [`FileSystem::attributes`], with the lifetime `valid`. It does not change what is known of the kernel's
    /// cached size.
    pub(crate) fn attributes_for(&self, header: &Header, attrs: &Attrs, valid: Duration) -> Reply {
        self.nodes.tell(header.node, attrs);
        self.keep_pages(header.node, attrs);
        told(header, attrs, valid)
    }

    /// Returns attributes that the kernel received a moment ago, if it asks for them once more with the birth time
    /// (STATX).
    pub(crate) fn told_lately(&self, header: &Header) -> Option<Reply> {
        let valid = self.lifetimes(header.node).attrs;
        if header.opcode != opcode::STATX || valid.is_zero() {
            return None;
        }
        let (attrs, ago) = self.recent_attrs.take(header.node)?;
        Some(told(header, &attrs, valid.saturating_sub(ago)))
    }

    /// Lets the kernel keep pages of a file that only it writes: the next open finds the pages valid for these
    /// attributes.
    fn keep_pages(&self, number: u64, attrs: &Attrs) {
        if self.write_back.is_on() && self.write_back.is_written(number) && !self.write_back.is_shared(number) {
            self.nodes.pages_became(number, attrs);
        }
    }

    /// Records the answer to a change in the request's directory, with or without the attributes of the directory.
    /// `unseen` is from before the change ([`Nodes::unseen`]).
    pub(crate) fn changed_in(&self, header: &Header, attrs: Option<Attrs>, unseen: u64) {
        self.nodes.changed(header.node, attrs, self.config.attrs_valid, unseen);
    }

    /// Ensures that the kernel does not continue with attributes older than these.
    pub(crate) fn renew(&self, number: u64, attrs: &Attrs) {
        self.recent_attrs.changed();
        // The kernel may have dropped the last answer, and may consider an older answer valid.
        let unsure = !self.write_back.is_on() && !self.nodes.believes_size(number, attrs.size);
        if self.nodes.tell(number, attrs) || unsure {
            self.doubt_attributes(number);
        }
    }

    /// Makes the kernel ask for the attributes of a file again. The kernel drops answers that are in flight at that
    /// moment, because they may make it drop pages.
    pub(crate) fn doubt_attributes(&self, number: u64) {
        let Some(transport) = self.transport() else { return };
        // A negative offset invalidates attributes only.
        let body = Body::with_capacity(24).u64(number).u64(u64::MAX).u64(0).into_vec();
        if let Err(error) = transport.notify(abi::notify::INVAL_INODE, &body) {
            // The kernel has forgotten the file.
            tracing::trace!(node = number, "telling the kernel of new attributes: {error}");
        }
    }

    /// Returns the `FOPEN_*` flags for a file that was opened with these flags, and whether the kernel is going to
    /// write the file to its page cache. `changed` says whether the version differs from the one that the kernel knew.
    /// `sure` says whether the kernel knows the size.
    pub(crate) fn how(&self, file: &File, flags: u32, (changed, sure): (bool, bool)) -> (u32, Option<Writing>) {
        let access = file.policy().access;
        if access == Access::Page {
            self.read_ahead.begin(|| self.callers.anybody().policy().policy);
        }
        let direct = abi::fopen::DIRECT_IO | abi::fopen::PARALLEL_DIRECT_WRITES;
        let keep = if changed { 0 } else { abi::fopen::KEEP_CACHE };
        if access != Access::Page || !file.may_be_cached() {
            return (direct, None);
        }
        match self.write_back.begin(file.node().id.0, file, flags) {
            Ok(None) => (keep, None),
            Ok(Some(_)) if !sure => (direct, None),
            Ok(writing) => {
                self.may_believe_more(file.node().id.0);
                (keep, writing)
            }
            Err(NotAlone) => (direct, None),
        }
    }

    /// Closes the files that the kernel left open, and ends the session.
    pub(crate) async fn end(&self) -> client::Result<()> {
        let mut outcome = Ok(());
        for open in self.opens.take_files() {
            if let Ok(open) = Arc::try_unwrap(open).map_err(drop) {
                outcome = outcome.and(open.file.close().await);
            }
        }
        outcome.and(self.callers.anybody().clone().disconnect().await)
    }
}

/// Translates the flags of open(2) into the client's flags. Linux truncates a file that is opened for reading, too, and
/// requires write permission then.
pub(crate) fn wanted(flags: u32) -> OpenFlags {
    let flags = OFlags::from_bits_retain(flags);
    OpenFlags {
        read: !flags.contains(OFlags::WRONLY) || flags.contains(OFlags::RDWR),
        write: flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC),
        truncate: flags.contains(OFlags::TRUNC),
        execute: flags.bits() & abi::FMODE_EXEC != 0,
    }
}

/// Returns the settings that the flags of open(2) imply.
pub(crate) fn hint(flags: u32) -> Settings {
    let direct = OFlags::from_bits_retain(flags).contains(OFlags::DIRECT);
    Settings { access: direct.then_some(Access::ODirect), ..Settings::default() }
}
