//! The state that all requests of a mounted file system share.

use crate::Errno;
use crate::abi::{self, opcode};
use crate::callers::Callers;
use crate::coherence::{Admission, Caching, Coherence, Found, Mark};
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
use types::{Attrs, FileKind};

/// The result of an operation: the reply to the kernel, or an errno.
pub(crate) type Answer = Result<Reply, Errno>;

/// Encodes attributes as the reply to GETATTR or STATX, with the lifetime `valid`.
pub(crate) fn told(header: &Header, attrs: &Attrs, valid: Duration) -> Reply {
    match header.opcode {
        opcode::STATX => crate::reply::statx(attrs, valid),
        _ => crate::reply::attributes(attrs, valid),
    }
}

/// The state of a mounted file system, which all its requests share.
pub(crate) struct FileSystem {
    pub(crate) callers: Callers,
    pub(crate) config: Config,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) coherence: Arc<Coherence>,
    /// Whether the mount, not the kernel, clears setuid and setgid bits on a write.
    pub(crate) drops_privileges: AtomicBool,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) open_unlink_races: OpenUnlinkRaces,
    pub(crate) rewalks: Rewalks,
    transport: OnceLock<Weak<dyn Transport>>,
}

impl FileSystem {
    /// Creates the file system whose root is the directory `root` of a client mount.
    ///
    /// # Errors
    /// Another cache, for example of another FUSE file system, already receives the recalls of this client mount.
    pub(crate) fn new(mount: Mount, root: Node, config: Config) -> client::Result<Arc<Self>> {
        let nodes = Arc::new(Nodes::new(root, config.known_files, config.entry_valid));
        let opens = Arc::<Opens>::default();
        let caching = Caching { attrs_valid: config.attrs_valid, writeback: config.writeback };
        let coherence = Coherence::new(mount.clone(), nodes.clone(), opens.clone(), caching)?;
        Ok(Arc::new(FileSystem {
            callers: Callers::new(mount),
            config,
            nodes,
            opens,
            coherence,
            drops_privileges: AtomicBool::default(),
            read_ahead: ReadAhead::default(),
            open_unlink_races: OpenUnlinkRaces::default(),
            rewalks: Rewalks::default(),
            transport: OnceLock::new(),
        }))
    }

    /// Sets the transport that carries notifications to the kernel.
    pub(crate) fn connect(&self, transport: &Arc<dyn Transport>) {
        let _ = self.transport.set(Arc::downgrade(transport));
        self.coherence.connected(transport);
    }

    /// Returns the transport that carries notifications to the kernel, while it exists.
    pub(crate) fn transport(&self) -> Option<Arc<dyn Transport>> {
        self.transport.get().and_then(Weak::upgrade)
    }

    /// Handles FORGET: records the numbers of lookups that the kernel has forgotten, by node id.
    pub(crate) fn forget(&self, nodes: &[(u64, u64)]) {
        for (node, lookups) in nodes {
            self.nodes.forget(*node, *lookups, || self.coherence.forgotten(*node));
        }
    }

    /// Returns the client mount with the credentials of the caller.
    pub(crate) fn acting(&self, header: &Header) -> Mount {
        self.callers.of(header)
    }

    /// Returns the file that a request concerns.
    pub(crate) fn node(&self, header: &Header) -> Result<Node, Errno> {
        self.nodes.get(header.node)
    }

    /// Appends an entry to the reply `body`: the file that a name in the directory of the request stands for. From then
    /// on the kernel has an inode of the file.
    pub(crate) fn entry(&self, body: Body, header: &Header, name: &[u8], (node, attrs): (&Node, &Attrs)) -> Body {
        self.entry_for(body, (header, name), (node, attrs), (false, None))
    }

    /// Appends the entry of a name that the request has created to the reply `body`. If the kernel writes the file
    /// through its page cache, the attributes get no lifetime.
    pub(crate) fn entry_made(&self, body: Body, header: &Header, name: &[u8], (node, attrs): (&Node, &Attrs)) -> Body {
        let written = self.coherence.is_written(node.id.0);
        self.entry_for(body, (header, name), (node, attrs), (written, None))
    }

    /// Appends the entry that a LOOKUP found to the reply `body`. `mark` is the moment before the mount requested the
    /// attributes from the mgr.
    pub(crate) fn entry_found(
        &self,
        body: Body,
        (header, name): (&Header, &[u8]),
        (node, attrs): (&Node, &Attrs),
        mark: Option<Mark>,
    ) -> Body {
        self.entry_for(body, (header, name), (node, attrs), (false, mark))
    }

    /// Appends an entry of a directory listing to the reply `body`. `mark` is the moment before the mount requested the
    /// page of entries from the mgr. If another client may have changed the file after `mark`, the attributes get no
    /// lifetime.
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
        let told = |number| self.coherence.entry_sent(number, attrs);
        let number = self.nodes.remember(node, (header.node, name), attrs, told);
        let valid = self.coherence.entry_replied(header.pid, number, attrs, (written, found));
        // The kernel follows a cached symbolic link without a request, so the mount cannot check the path of the link.
        // So the kernel must not cache the name of the link.
        let entry = if attrs.kind == FileKind::Symlink { Duration::ZERO } else { self.config.entry_valid };
        crate::reply::entry(body, number, attrs, Lifetimes { entry, attrs: valid })
    }

    /// Encodes attributes of a file as the reply to GETATTR or STATX.
    pub(crate) fn attributes(&self, header: &Header, attrs: &Attrs) -> Reply {
        told(header, attrs, self.coherence.getattr_replied(header.node, attrs))
    }

    /// Encodes attributes of a file as the reply to a change that the kernel has requested (SETATTR).
    pub(crate) fn attributes_changed(&self, header: &Header, attrs: &Attrs) -> Reply {
        told(header, attrs, self.coherence.setattr_replied(header.node, attrs))
    }

    /// Decides how an open with the given flags uses the page cache ([`Coherence::admit`]).
    pub(crate) fn admit(&self, file: &File, flags: u32, found: Found) -> Admission {
        if file.policy().access == Access::Page {
            self.read_ahead.begin(|| self.callers.anybody().policy().policy);
        }
        self.coherence.admit(file, flags, found)
    }

    /// Adds a file that was opened with the given flags to the table of opens, and returns its handle.
    pub(crate) fn add_file(&self, file: File, flags: u32, admission: Admission) -> u64 {
        let pages = self.coherence.begins_use(&file, flags, admission);
        self.opens.add_file(file, flags, pages)
    }

    /// Closes the files that the kernel left open, and ends the client's session.
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

/// Translates the flags of open(2) into the client's flags. With O_TRUNC, Linux truncates even a file that is opened
/// for reading only, and requires write permission.
pub(crate) fn wanted(flags: u32) -> OpenFlags {
    let flags = OFlags::from_bits_retain(flags);
    OpenFlags {
        read: !flags.contains(OFlags::WRONLY) || flags.contains(OFlags::RDWR),
        write: flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC),
        truncate: flags.contains(OFlags::TRUNC),
        execute: flags.bits() & abi::FMODE_EXEC != 0,
    }
}

/// Returns the settings that the flags of open(2) imply: O_DIRECT means unbuffered access.
pub(crate) fn hint(flags: u32) -> Settings {
    let direct = OFlags::from_bits_retain(flags).contains(OFlags::DIRECT);
    Settings { access: direct.then_some(Access::Unbuffered), ..Settings::default() }
}
