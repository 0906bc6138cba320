//! The mounted file system: what all requests share.

use crate::Errno;
use crate::abi::{self, opcode};
use crate::callers::Callers;
use crate::calls::{self, Call};
use crate::config::Config;
use crate::lately::{Lately, Mark};
use crate::nodes::Nodes;
use crate::opens::Opens;
use crate::ops::{self, InDirectory};
use crate::read_ahead::ReadAhead;
use crate::reply::{Body, Lifetimes, Reply};
use crate::request::{Header, Request};
use crate::rewalks::Rewalks;
use crate::transport::Transport;
use crate::vanishing::Vanishing;
use crate::write_back::{NotAlone, Recalled, WriteBack, Writing};
use client::{Access, File, Mount, Node, OpenFlags, Settings};
use rustix::fs::OFlags;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use types::{Attrs, FileId, FileKind};

const ENOENT: Errno = Errno(2);
const ESTALE: Errno = Errno(116);

/// What an operation answers.
pub(crate) type Answer = Result<Reply, Errno>;

/// Attributes as the answer to a request has them, good for so long.
fn told(header: &Header, attrs: &Attrs, valid: Duration) -> Reply {
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
    /// Whether setuid and setgid bits are taken away here when somebody writes, not by the kernel.
    pub(crate) drops_privileges: AtomicBool,
    pub(crate) lately: Lately,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) vanishing: Vanishing,
    pub(crate) rewalks: Rewalks,
    pub(crate) write_back: WriteBack,
    own: Weak<FileSystem>,
    transport: OnceLock<Weak<dyn Transport>>,
}

impl FileSystem {
    /// What is below `root` in a mount.
    ///
    /// # Errors
    /// Another one on this client caches its files already.
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
            lately: Lately::default(),
            read_ahead: ReadAhead::default(),
            vanishing: Vanishing::default(),
            rewalks: Rewalks::default(),
            write_back,
            own: own.clone(),
            transport: OnceLock::new(),
        });
        fs.callers.anybody().keep_with(Arc::new(Recalled(fs.own.clone())))?;
        Ok(fs)
    }

    /// What lives as long as somebody uses it.
    pub(crate) fn shared(&self) -> Option<Arc<FileSystem>> {
        self.own.upgrade()
    }

    /// Says where the kernel can be told things.
    pub(crate) fn connect(&self, transport: &Arc<dyn Transport>) {
        let _ = self.transport.set(Arc::downgrade(transport));
    }

    /// Where the kernel can be told things, while it is there.
    pub(crate) fn transport(&self) -> Option<Arc<dyn Transport>> {
        self.transport.get().and_then(Weak::upgrade)
    }

    /// Carries a request out.
    pub(crate) async fn carry_out(self: Arc<Self>, mut request: Request) -> Reply {
        request.header.expects = self.expects(&request);
        let _asking = self.asks(&request);
        let header = request.header;
        let mut again = header.expects.then(|| Box::new(request.clone()));
        let mut outcome = ops::carry_out(&self, request).await;
        // Boxed, for it is rare, as what follows.
        if matches!(outcome, Err(Errno::UNWALKED))
            && let Some(request) = again.take()
        {
            outcome = Box::pin(self.carry_out_unchecked(*request)).await;
        }
        match (&outcome, again) {
            (Err(Errno::MOVED), Some(request)) => outcome = Box::pin(self.moved(*request)).await,
            (Err(ESTALE), _) => outcome = Box::pin(self.gone(&header)).await,
            _ => self.answered(&header, &outcome),
        }
        tracing::trace!(unique = header.unique, opcode = header.opcode, node = header.node, failed = ?outcome.as_ref().err());
        outcome.unwrap_or_else(Reply::Failed)
    }

    /// The answer to a request about a file that others have removed. After ESTALE the kernel walks the path again, once in a system call. A thread
    /// that has a removed directory open is answered as on a local file system: the directory is empty, and its attributes are there.
    async fn gone(&self, header: &Header) -> Answer {
        if !self.has_kernel_walk_again(header).await {
            let outcome = self.gone_for_good(header);
            self.answered(header, &outcome);
            return outcome;
        }
        Err(ESTALE)
    }

    /// Whether the kernel walks a path again when it is told that a file is gone; it is about to be told then.
    async fn has_kernel_walk_again(&self, header: &Header) -> bool {
        let in_directory = InDirectory::of(header.opcode);
        let by_path = matches!(in_directory, Some(InDirectory::Name | InDirectory::Itself));
        if by_path && self.nodes.comes_again(header.node, header.pid) || !by_path && !header.expects {
            return false;
        }
        let call: Call = calls::look(header.pid, |call| call).await;
        if self.rewalks.is_walking(header.pid, call.text()) || by_path && call.is_fstat() {
            return false;
        }
        if by_path && call.opens() {
            // For OPEN, `ops::open` has done this already; a lookup or a question for attributes within open(2) has not.
            self.vanishing.gone(header.pid, header.node);
        }
        self.rewalks.begin(header.pid, call.text());
        true
    }

    /// The answer where the kernel would not walk the path again: the directory is empty, and its attributes are there.
    pub(crate) fn gone_for_good(&self, header: &Header) -> Answer {
        match InDirectory::of(header.opcode) {
            Some(InDirectory::Entries | InDirectory::Name) => Err(ENOENT),
            Some(InDirectory::Itself) => {
                let attrs = self.nodes.removed(header.node).ok_or(ESTALE)?;
                Ok(told(header, &attrs, Duration::ZERO))
            }
            None => Err(ESTALE),
        }
    }

    /// The kernel has forgotten files.
    pub(crate) fn forget(&self, nodes: &[(u64, u64)]) {
        nodes.iter().for_each(|(node, lookups)| self.nodes.forget(*node, *lookups));
    }

    /// The mount in the name of whoever asks.
    pub(crate) fn acting(&self, header: &Header) -> Mount {
        self.callers.of(header)
    }

    /// The file that a request is about.
    pub(crate) fn node(&self, header: &Header) -> Result<Node, Errno> {
        self.nodes.get(header.node)
    }

    /// Whether other clients may write a file that is open here: the kernel asks for its attributes each time, and what it has of it is no good.
    pub(crate) fn is_shared(&self, number: u64) -> bool {
        self.write_back.is_shared(number) || self.callers.anybody().is_shared(FileId(number))
    }

    /// How long the kernel may believe what it is told of a file: attributes not at all, where others change them.
    fn lifetimes(&self, number: u64) -> Lifetimes {
        let attrs = if self.is_shared(number) { Duration::ZERO } else { self.config.attrs_valid };
        Lifetimes { entry: self.config.entry_valid, attrs }
    }

    /// Appends what a name in the directory that a request is about stands for, which the kernel knows from then on.
    pub(crate) fn entry(&self, body: Body, header: &Header, name: &[u8], (node, attrs): (&Node, &Attrs)) -> Body {
        self.entry_for(body, (header, name), (node, attrs), (false, None))
    }

    /// As [`FileSystem::entry`], of a name that was just made. Where the file is written to the page cache, as [`FileSystem::attributes_changed`].
    pub(crate) fn entry_made(&self, body: Body, header: &Header, name: &[u8], (node, attrs): (&Node, &Attrs)) -> Body {
        let written = self.write_back.is_written(node.id.0);
        self.entry_for(body, (header, name), (node, attrs), (written, None))
    }

    /// As [`FileSystem::entry`], of a file whose attributes were asked for after `mark`, when nothing was asked for but those.
    pub(crate) fn entry_found(
        &self,
        body: Body,
        (header, name): (&Header, &[u8]),
        (node, attrs): (&Node, &Attrs),
        mark: Option<Mark>,
    ) -> Body {
        self.entry_for(body, (header, name), (node, attrs), (false, mark))
    }

    /// As [`FileSystem::entry`], of an entry of a directory whose page was asked for after `mark`. The kernel asks for the attributes of a file
    /// that another client may have changed since.
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
            // The kernel follows a symbolic link without a request about it, so that nothing could check its path.
            lifetimes.entry = Duration::ZERO;
        }
        // A kernel that does not know the file yet cannot be told before this answer that others want it.
        if written || self.needs_correction(header.pid, number, attrs) {
            // Whoever wants to know asks for attributes then, and the kernel is told before that is answered.
            lifetimes.attrs = Duration::ZERO;
        }
        if let Some(mark) = found.filter(|_| !lifetimes.attrs.is_zero()) {
            self.lately.tell(number, attrs, mark);
        }
        crate::reply::entry(body, number, attrs, lifetimes)
    }

    /// Attributes of a file for the kernel.
    pub(crate) fn attributes(&self, header: &Header, attrs: &Attrs) -> Reply {
        self.believes(header.node, attrs);
        self.attributes_for(header, attrs, self.lifetimes(header.node).attrs)
    }

    /// As [`FileSystem::attributes`], after a change that the kernel has asked for. Such an answer it takes notice of also when it was told of something else
    /// meanwhile: it does not hear here how long to believe a size that others may change by then.
    pub(crate) fn attributes_changed(&self, header: &Header, attrs: &Attrs) -> Reply {
        self.believes_surely(header.node, attrs);
        let written = self.write_back.is_written(header.node);
        let valid = if written { Duration::ZERO } else { self.lifetimes(header.node).attrs };
        self.attributes_for(header, attrs, valid)
    }

    /// The kernel receives these attributes. It drops an answer if it has changed its own attributes of the file since it asked, so a new size may or may not
    /// reach its cache. A kernel that writes back takes sizes from no answer.
    fn believes(&self, number: u64, attrs: &Attrs) {
        if !self.write_back.is_on() && !self.nodes.believes_size(number, attrs.size) {
            self.may_believe_more(number);
        }
    }

    /// As [`FileSystem::believes`], in the answer to SETATTR or an open that truncates: the kernel never drops that.
    pub(crate) fn believes_surely(&self, number: u64, attrs: &Attrs) {
        if !self.write_back.is_on() {
            self.nodes.believe(number, Some(attrs));
        }
    }

    /// As [`FileSystem::attributes`], good for so long. The size that the kernel has cached is as unknown as before.
    pub(crate) fn attributes_for(&self, header: &Header, attrs: &Attrs, valid: Duration) -> Reply {
        self.nodes.tell(header.node, attrs);
        self.keep_pages(header.node, attrs);
        told(header, attrs, valid)
    }

    /// What the kernel was told of a file a moment ago, if it asks for that once more with when the file was made.
    pub(crate) fn told_lately(&self, header: &Header) -> Option<Reply> {
        let valid = self.lifetimes(header.node).attrs;
        if header.opcode != opcode::STATX || valid.is_zero() {
            return None;
        }
        let (attrs, ago) = self.lately.take(header.node)?;
        Some(told(header, &attrs, valid.saturating_sub(ago)))
    }

    /// What the kernel itself has made of a file that it writes alone, it may keep when the file is opened next.
    fn keep_pages(&self, number: u64, attrs: &Attrs) {
        if self.write_back.is_on() && self.write_back.is_written(number) && !self.write_back.is_shared(number) {
            self.nodes.pages_became(number, attrs);
        }
    }

    /// A change of the directory that a request is about was answered with its attributes, or without; `unseen` was taken
    /// before ([`Nodes::unseen`]).
    pub(crate) fn changed_in(&self, header: &Header, attrs: Option<Attrs>, unseen: u64) {
        self.nodes.changed(header.node, attrs, self.config.attrs_valid, unseen);
    }

    /// Sees to it that the kernel does not go on with attributes older than these.
    pub(crate) fn renew(&self, number: u64, attrs: &Attrs) {
        self.lately.changed();
        // The kernel may have dropped the last answer, and may hold an older one to be valid.
        let unsure = !self.write_back.is_on() && !self.nodes.believes_size(number, attrs.size);
        if self.nodes.tell(number, attrs) || unsure {
            self.doubt_attributes(number);
        }
    }

    /// Has the kernel ask for the attributes of a file again. It takes no notice of answers that are under way then, which may have it drop pages.
    pub(crate) fn doubt_attributes(&self, number: u64) {
        let Some(transport) = self.transport() else { return };
        // A negative offset is for attributes alone.
        let body = Body::with_capacity(24).u64(number).u64(u64::MAX).u64(0).into_vec();
        if let Err(error) = transport.notify(abi::notify::INVAL_INODE, &body) {
            // It has forgotten the file.
            tracing::trace!(node = number, "telling the kernel of new attributes: {error}");
        }
    }

    /// How the kernel is to use a file that was opened with these flags, and whether it is going to write it to its page cache; `changed`
    /// tells whether it is another one than the kernel knew, `sure` whether the kernel knows how long it is.
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

    /// Closes what the kernel left open, and ends the session.
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

/// What open(2) asked for, in the client's words. Linux cuts a file that is opened to be read, too, and asks for the right to write it then.
pub(crate) fn wanted(flags: u32) -> OpenFlags {
    let flags = OFlags::from_bits_retain(flags);
    OpenFlags {
        read: !flags.contains(OFlags::WRONLY) || flags.contains(OFlags::RDWR),
        write: flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC),
        truncate: flags.contains(OFlags::TRUNC),
        execute: flags.bits() & abi::FMODE_EXEC != 0,
    }
}

/// What the flags of open(2) say about the use of a file.
pub(crate) fn hint(flags: u32) -> Settings {
    let direct = OFlags::from_bits_retain(flags).contains(OFlags::DIRECT);
    Settings { access: direct.then_some(Access::ODirect), ..Settings::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_little_room() {
        fn room<A, B, F: Future>(_: fn(A, B) -> F) -> usize {
            size_of::<F>()
        }
        // All of it is allocated and moved for each request, also for one that ends at once.
        let room = room(FileSystem::carry_out);
        assert!(room <= 4096, "{room} bytes");
    }
}
