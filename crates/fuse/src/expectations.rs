//! Requests that expect a path to lead to a file, and what the kernel is answered when it leads elsewhere.
//!
//! The kernel caches what names stand for ([`Config::entry_valid`](crate::Config::entry_valid)), and sends node ids. With a request that a program
//! makes by a name, the mount sends the path by which the kernel found the node ([`client::Mount::expecting`]). If another client changed what a
//! name on the path stands for, the mgr carries nothing out, and the kernel is answered ESTALE: it walks the path again, with a lookup of each name.
//! A program that used a descriptor has no path to be walked again; its request is carried out on the file that it has.

use crate::Errno;
use crate::abi::opcode;
use crate::calls::{self, Call};
use crate::fs::{Answer, FileSystem};
use crate::ops;
use crate::reply::Reply;
use crate::request::{Header, Op, Request};
use crate::rewalks::{Asking, Step};
use bytes::Bytes;
use client::Mount;
use types::FileId;

const ENOENT: Errno = Errno(2);
const ESTALE: Errno = Errno(116);

impl Op {
    /// Whether the kernel sends it for a name that a program used.
    fn is_by_name(&self) -> bool {
        matches!(
            self,
            Op::Lookup { .. }
                | Op::Setattr(_)
                | Op::Symlink { .. }
                | Op::Mknod { .. }
                | Op::Mkdir { .. }
                | Op::Unlink { .. }
                | Op::Rmdir { .. }
                | Op::Rename { .. }
                | Op::Link { .. }
                | Op::Open { .. }
                | Op::Create { .. }
                | Op::Setxattr { .. }
                | Op::Getxattr { .. }
                | Op::Listxattr { .. }
                | Op::Removexattr { .. }
                | Op::Opendir
        )
    }

    /// What the thread asks for, in the directory with this number.
    fn step(&self, dir: u64) -> Step<'_> {
        match self {
            Op::Lookup { name } => Step::LookUp(dir, name),
            Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Rename { .. }
            | Op::Link { .. }
            | Op::Create { .. } => Step::Make,
            _ => Step::Other,
        }
    }
}

/// What a system call wants with the name that is looked up for it.
#[derive(Default)]
struct Wanted {
    /// It makes the name.
    makes: bool,
    /// Its path begins at the directory.
    begins: bool,
}

/// The system call behind a request, and what it wants with the name that the request looks up in this directory, which may have this name.
async fn call_of(request: &Request, (dir, dir_name): (FileId, Option<Bytes>)) -> (Call, Wanted) {
    let name = match &request.op {
        Op::Lookup { name } => Some(name.clone()),
        _ => None,
    };
    let look = move |call: Call| {
        let wanted = |name: Bytes| Wanted {
            makes: call.makes(dir_name.as_deref(), &name),
            begins: call.begins_at(dir.0, &name),
        };
        let wanted = name.map(wanted).unwrap_or_default();
        (call, wanted)
    };
    calls::look(request.header.pid, look).await
}

impl FileSystem {
    /// Whether a request is to expect the path of its file; a kernel that does not cache names looks up all of them itself. Of a thread in a
    /// namespace that this process does not see nobody can tell whether its path is walked again.
    pub(crate) fn expects(&self, request: &Request) -> bool {
        !self.config.entry_valid.is_zero() && request.header.pid != 0 && request.op.is_by_name()
    }

    /// Carries out a request without checking its path: the user may not search a directory on it, and came by another way, such as a bind mount.
    pub(crate) async fn carry_out_unchecked(&self, mut request: Request) -> Answer {
        request.header.expects = false;
        ops::carry_out(self, request).await
    }

    /// The mount in the name of whoever asks, expecting the paths to the file that a request is about.
    pub(crate) fn by_name(&self, header: &Header) -> Mount {
        self.by_names(header, None)
    }

    /// As [`FileSystem::by_name`], and the paths to another file.
    pub(crate) fn by_names(&self, header: &Header, other: Option<u64>) -> Mount {
        let mount = self.acting(header);
        if !header.expects {
            return mount;
        }
        let mut walks = self.nodes.walks(header.node);
        if let Some(other) = other.filter(|other| *other != header.node) {
            walks.extend(self.nodes.walks(other));
        }
        mount.expecting(walks)
    }

    /// The answer to a request whose path leads elsewhere.
    pub(crate) async fn moved(&self, mut request: Request) -> Answer {
        let header = request.header;
        let dir = (self.node(&header)?.id, self.nodes.name_of(header.node));
        let (call, wanted) = call_of(&request, dir).await;
        if wanted.begins || self.is_unexpecting(&request.op, &call, header.pid) {
            request.header.expects = false;
            self.rewalks.worked_in(header.node);
            let mut outcome = ops::carry_out(self, request).await;
            if matches!(outcome, Err(ESTALE)) {
                outcome = self.gone_for_good(&header);
            }
            self.answered(&header, &outcome);
            return outcome;
        }
        self.rewalks.end(header.pid);
        match &request.op {
            // The kernel may be asking whether the name still stands for the same file. To that ESTALE is an answer like any other: it drops the
            // name, and asks what it stands for.
            Op::Lookup { name } if self.nodes.unnamed(header.node, name) => {
                self.rewalks.dropped(header.pid, header.node, name);
                return Err(ESTALE);
            }
            // It goes on to make the name, and walks the path again when that fails.
            Op::Lookup { .. } if wanted.makes => return Err(ENOENT),
            // As the first, of the same name, to another thread.
            Op::Lookup { name } if self.rewalks.drops(header.pid, header.node, name) => return Err(ESTALE),
            Op::Open { .. } => drop(self.vanishing.gone(header.pid, header.node)),
            _ => {}
        }
        self.rewalks.begin(header.pid, call.text());
        Err(ESTALE)
    }

    /// Whether an operation is carried out whatever its path leads to: the kernel would not walk the path again.
    fn is_unexpecting(&self, op: &Op, call: &Call, thread: u32) -> bool {
        let by_descriptor = match op {
            Op::Setattr(_)
            | Op::Setxattr { .. }
            | Op::Getxattr { .. }
            | Op::Listxattr { .. }
            | Op::Removexattr { .. } => !call.is_by_path(),
            // It may be a lookup whose ESTALE a program would see. The request that follows is checked again.
            Op::Lookup { .. } => call.is_unknown() || call.never_walks_again(),
            _ => call.never_walks_again(),
        };
        by_descriptor || self.rewalks.is_walking(thread, call.text())
    }

    /// A request is carried out as long as what this returns lives.
    pub(crate) fn asks(&self, request: &Request) -> Option<Box<Asking<'_>>> {
        let Header { expects, pid, node, .. } = request.header;
        if expects { self.rewalks.asks(pid, request.op.step(node)) } else { None }
    }

    /// A request has its answer, and the kernel does not walk the path again for it: a lookup goes on with the thread's walk, any other request that
    /// expected a path ends it.
    pub(crate) fn answered(&self, header: &Header, outcome: &Answer) {
        match header.opcode {
            // The number of a file, or zero.
            opcode::LOOKUP => {
                let found = matches!(outcome, Ok(Reply::Bytes(entry)) if entry.iter().take(8).any(|byte| *byte != 0));
                self.rewalks.looked_up(header.pid, found);
            }
            _ if header.expects => self.rewalks.end(header.pid),
            _ => {}
        }
    }
}
