//! Errors of calls and connections between processes.

use std::sync::Arc;
use std::time::Duration;

/// Reason why a call or a connection failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The connection could not be made.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// The address to connect to.
        address: Arc<str>,
        /// The system's reason.
        reason: Arc<str>,
    },
    /// The process cannot listen at this address.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// The address to listen on.
        address: Arc<str>,
        /// The system's reason.
        reason: Arc<str>,
    },
    /// The connection ended before the reply arrived; the call may or may not have been executed.
    #[error("connection lost: {0}")]
    Broken(Arc<str>),
    /// No reply within the caller's timeout; the call may or may not have been executed.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The peer replied that it did not execute the call.
    #[error("the peer refused the call: {0}")]
    Refused(#[from] crate::rpc::Refusal),
    /// The peer's reply could not be decoded.
    #[error("the peer's answer is malformed: {0}")]
    Malformed(#[from] xdr::Malformed),
    /// The message exceeds the maximum record size; nothing was sent.
    #[error("a message of {len} bytes exceeds the limit of {max} bytes")]
    TooBig {
        /// The length of the message in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
}

impl Error {
    pub(crate) fn broken(reason: impl std::fmt::Display) -> Self {
        Error::Broken(reason.to_string().into())
    }

    /// Returns whether the peer certainly did not execute the call.
    pub fn not_executed(&self) -> bool {
        matches!(self, Error::Connect { .. } | Error::TooBig { .. } | Error::Refused(_))
    }
}
