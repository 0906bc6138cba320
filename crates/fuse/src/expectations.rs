//! Path expectations: requests that require that a path still leads to a file, and the replies to the kernel if the
//! path leads to another file.
//!
//! The kernel caches which files names stand for ([`Config::entry_valid`](crate::Config::entry_valid)), and sends
//! node ids. For a request that a program makes by a name, the mount also sends the mgr the path by which the kernel
//! found the node ([`client::Mount::expecting`]). If another client has moved or replaced a file on the path, the mgr
//! does not execute the operation, and the mount replies ESTALE. The kernel then walks the path again, with a LOOKUP
//! of each name.
//!
//! A program that uses a descriptor has no path that the kernel could walk again. For such a program, the mount
//! executes the request on the open file.

use crate::Errno;
use crate::abi::opcode;
use crate::caller_syscall::{self, Call};
use crate::fs::{Answer, FileSystem};
use crate::ops;
use crate::reply::Reply;
use crate::request::{Header, Op, Request};
use crate::rewalks::{RewalkGuard, Step};
use bytes::Bytes;
use client::Mount;
use types::FileId;

const ENOENT: Errno = Errno(2);
const ESTALE: Errno = Errno(116);

impl Op {
    /// Returns whether the kernel may send the operation because a program names a file by a path in a system call.
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

    /// Returns what the operation is in the path walk of a thread: a LOOKUP in the directory `dir`, the creation of a
    /// name, or another operation.
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

/// What a system call does with the name in the LOOKUP that the call caused.
#[derive(Default)]
struct Wanted {
    /// Whether the system call creates the name.
    makes: bool,
    /// Whether the path of the call begins at the directory of the LOOKUP.
    begins: bool,
}

/// Returns the system call that caused a request, and what this call does with the name that the request looks up.
/// `dir_name` is the name of the directory, if the mount knows the name.
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
    caller_syscall::look(request.header.pid, look).await
}

impl FileSystem {
    /// Returns whether the mgr has to check the path of a request. No check is necessary if the kernel caches no names,
    /// because the kernel then looks up each name. No check is possible for a thread in a PID namespace that this
    /// process does not see (id 0), because the mount cannot know whether the kernel walks the path again.
    pub(crate) fn expects(&self, request: &Request) -> bool {
        !self.config.entry_valid.is_zero() && request.header.pid != 0 && request.op.is_by_name()
    }

    /// Executes a request without checking its path. This is for a user who may not search a directory on the path, but
    /// reached the file through a bind mount, for example.
    pub(crate) async fn carry_out_unchecked(&self, mut request: Request) -> Answer {
        request.header.expects = false;
        ops::carry_out(self, request).await
    }

    /// Returns the client mount with the caller's credentials. Its operations require that the known paths still lead
    /// to the file of the request.
    pub(crate) fn by_name(&self, header: &Header) -> Mount {
        self.by_names(header, None)
    }

    /// Returns the client mount with the caller's credentials, like [`FileSystem::by_name`]. Its operations also
    /// require that the known paths of the file `other` still lead to `other`.
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

    /// Returns the reply to a request whose path leads to another file.
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
            // The kernel may be revalidating a cached name. Then it handles ESTALE like other errors: it drops the
            // name, and looks up the name again. So reply ESTALE.
            Op::Lookup { name } if self.nodes.unnamed(header.node, name) => {
                self.rewalks.dropped(header.pid, header.node, name);
                return Err(ESTALE);
            }
            // The system call creates the name. After ESTALE for this LOOKUP, the kernel would not walk the path again.
            // So reply that the name does not exist. The kernel then sends the create request, and after ESTALE for
            // that request it walks the path again.
            Op::Lookup { .. } if wanted.makes => return Err(ENOENT),
            // Another thread has already got ESTALE for this name. This thread gets ESTALE once too, so that the kernel
            // looks up the name again.
            Op::Lookup { name } if self.rewalks.drops(header.pid, header.node, name) => return Err(ESTALE),
            Op::Open { .. } => drop(self.open_unlink_races.gone(header.pid, header.node)),
            _ => {}
        }
        self.rewalks.begin(header.pid, call.text());
        Err(ESTALE)
    }

    /// Returns whether the mount executes an operation without checking its path, because the kernel does not walk the
    /// path again after ESTALE.
    fn is_unexpecting(&self, op: &Op, call: &Call, thread: u32) -> bool {
        let by_descriptor = match op {
            Op::Setattr(_)
            | Op::Setxattr { .. }
            | Op::Getxattr { .. }
            | Op::Listxattr { .. }
            | Op::Removexattr { .. } => !call.is_by_path(),
            // If the system call is unknown, the program itself might receive the ESTALE of this LOOKUP. So the mount
            // executes the LOOKUP without a check, and checks the path of the next request.
            Op::Lookup { .. } => call.is_unknown() || call.never_walks_again(),
            _ => call.never_walks_again(),
        };
        by_descriptor || self.rewalks.is_walking(thread, call.text())
    }

    /// Records that a request begins, if the kernel is walking the path of the request's thread again after ESTALE.
    /// Dropping the returned guard records the end of the request. Returns `None` for any other request.
    pub(crate) fn begin_request(&self, request: &Request) -> Option<Box<RewalkGuard<'_>>> {
        let Header { expects, pid, node, .. } = request.header;
        if expects { self.rewalks.begin_request(pid, request.op.step(node)) } else { None }
    }

    /// Records a reply after which the kernel does not walk the path again. A LOOKUP continues the thread's path
    /// walk. Any other request with a path expectation ends the walk.
    pub(crate) fn answered(&self, header: &Header, outcome: &Answer) {
        match header.opcode {
            // An entry begins with a node id. The node id zero means that the name does not exist.
            opcode::LOOKUP => {
                let found = matches!(outcome, Ok(Reply::Bytes(entry)) if entry.iter().take(8).any(|byte| *byte != 0));
                self.rewalks.looked_up(header.pid, found);
            }
            _ if header.expects => self.rewalks.end(header.pid),
            _ => {}
        }
    }
}
