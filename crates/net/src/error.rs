//! Errors of RPC calls and of connections between processes.

use std::sync::Arc;
use std::time::Duration;

/// The reason why a call or a connection failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The process could not connect to an address. It has sent nothing.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// The address to which the process tried to connect.
        address: Arc<str>,
        /// The error of the operating system.
        reason: Arc<str>,
    },
    /// The process cannot listen at an address.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// The address at which the process tried to listen.
        address: Arc<str>,
        /// The error of the operating system.
        reason: Arc<str>,
    },
    /// The connection ended before the reply arrived. The peer may have executed the call or not.
    #[error("connection lost: {0}")]
    Broken(Arc<str>),
    /// No reply arrived within the caller's timeout. The peer may have executed the call or not.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The peer replied that it has not executed the call.
    #[error("the peer refused the call: {0}")]
    Refused(#[from] crate::rpc::Refusal),
    /// The caller could not decode the reply of the peer.
    #[error("the peer's answer is malformed: {0}")]
    Malformed(#[from] xdr::Malformed),
    /// The message exceeds the maximum length of a record. The process has sent nothing.
    #[error("a message of {len} bytes exceeds the limit of {max} bytes")]
    TooBig {
        /// Length of the message in bytes.
        len: usize,
        /// Maximum length of a record in bytes.
        max: usize,
    },
}

impl Error {
    pub(crate) fn broken(reason: impl std::fmt::Display) -> Self {
        Error::Broken(reason.to_string().into())
    }

    /// Returns whether this error proves that the peer did not execute the call.
    pub fn not_executed(&self) -> bool {
        matches!(self, Error::Connect { .. } | Error::TooBig { .. } | Error::Refused(_))
    }
}
