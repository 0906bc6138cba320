//! What can go wrong between two processes, and whose fault it is.

use std::sync::Arc;
use std::time::Duration;

/// Why a call or a connection failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// No connection could be made.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// Whom it was meant for.
        address: Arc<str>,
        /// What the system said.
        reason: Arc<str>,
    },
    /// Nothing can listen at this address.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// Where it was tried.
        address: Arc<str>,
        /// What the system said.
        reason: Arc<str>,
    },
    /// The connection ended before the answer came; the call may or may not have been executed.
    #[error("connection lost: {0}")]
    Broken(Arc<str>),
    /// No answer within the time that the caller allowed; the call may or may not have been executed.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The peer answered, but did not execute the call.
    #[error("the peer refused the call: {0}")]
    Refused(#[from] crate::rpc::Refusal),
    /// The peer's answer is not the message it should be.
    #[error("the peer's answer is malformed: {0}")]
    Malformed(#[from] xdr::Malformed),
    /// The message is larger than a record may be; nothing was sent.
    #[error("message of {len} bytes is over the limit of {max}")]
    TooBig {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
}

impl Error {
    pub(crate) fn broken(reason: impl std::fmt::Display) -> Self {
        Error::Broken(reason.to_string().into())
    }

    /// Whether the call certainly was not executed by the peer.
    pub fn not_executed(&self) -> bool {
        matches!(self, Error::Connect { .. } | Error::TooBig { .. } | Error::Refused(_))
    }
}
