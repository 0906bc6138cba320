//! Execution of requests, and replies to requests whose path leads to another file or whose file no longer exists.

use crate::Errno;
use crate::caller_syscall::{self, Call};
use crate::fs::{Answer, FileSystem, told};
use crate::ops::{self, DirectoryRequest};
use crate::reply::Reply;
use crate::request::{Header, Request};
use std::sync::Arc;
use std::time::Duration;

const ENOENT: Errno = Errno(2);
const ESTALE: Errno = Errno(116);

impl FileSystem {
    /// Executes a request and returns the reply.
    pub(crate) async fn carry_out(self: Arc<Self>, mut request: Request) -> Reply {
        request.header.expects = self.expects(&request);
        let _request = self.begin_request(&request);
        let header = request.header;
        let mut again = header.expects.then(|| Box::new(request.clone()));
        let mut outcome = ops::carry_out(&self, request).await;
        // Boxed, because the mount rarely has to execute a request again without a path check. Without the box, every
        // request would reserve memory for this future.
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

    /// Returns the reply to a request about a file that another client has removed. After ESTALE the kernel walks the
    /// path again, at most once in a system call. A thread that has a removed directory open gets the replies of a
    /// local file system: the directory is empty, and its attributes still exist.
    async fn gone(&self, header: &Header) -> Answer {
        if !self.has_kernel_walk_again(header).await {
            let outcome = self.gone_for_good(header);
            self.answered(header, &outcome);
            return outcome;
        }
        Err(ESTALE)
    }

    /// Returns whether the kernel walks the path again if the reply is ESTALE. If so, the caller has to reply ESTALE,
    /// because this function has already recorded the new path walk.
    async fn has_kernel_walk_again(&self, header: &Header) -> bool {
        let directory_request = DirectoryRequest::of(header.opcode);
        let by_path = matches!(directory_request, Some(DirectoryRequest::Name | DirectoryRequest::Itself));
        if by_path && self.nodes.comes_again(header.node, header.pid) || !by_path && !header.expects {
            return false;
        }
        let call: Call = caller_syscall::look(header.pid, |call| call).await;
        if self.rewalks.is_walking(header.pid, call.text()) || by_path && call.is_fstat() {
            return false;
        }
        if by_path && call.opens() {
            // `ops::open` records for OPEN that the file no longer exists. For a LOOKUP or GETATTR within open(2),
            // record this here.
            self.open_unlink_races.gone(header.pid, header.node);
        }
        self.rewalks.begin(header.pid, call.text());
        true
    }

    /// Returns the reply to a request about a removed file or directory, if the kernel does not walk the path again. A
    /// removed directory contains no names, but still has attributes.
    pub(crate) fn gone_for_good(&self, header: &Header) -> Answer {
        match DirectoryRequest::of(header.opcode) {
            Some(DirectoryRequest::Entries | DirectoryRequest::Name) => Err(ENOENT),
            Some(DirectoryRequest::Itself) => {
                let attrs = self.nodes.removed(header.node).ok_or(ESTALE)?;
                Ok(told(header, &attrs, Duration::ZERO))
            }
            None => Err(ESTALE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_little_memory() {
        fn room<A, B, F: Future>(_: fn(A, B) -> F) -> usize {
            size_of::<F>()
        }
        // Each request allocates and moves the whole future, even a request that completes at once. So the future
        // must be small.
        let room = room(FileSystem::carry_out);
        assert!(room <= 4096, "{room} bytes");
    }
}
