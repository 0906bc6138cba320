//! ONC RPC in both directions over one connection: calls, replies and callbacks told apart by message type.

mod connection;
mod outbox;
mod receive;
mod server;

pub use connection::{CallContext, Connection, NoService, Reply, Service};
pub use server::{Server, serve};

use std::time::Duration;
use types::limits;
use wire::rpc::{AcceptStat, Auth, RejectStat, ReplyStat};

/// Why a peer did not execute a call; also what a [`Service`] answers when it does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The program is not served here.
    #[error("program not served")]
    ProgUnavail,
    /// The program is served in other versions.
    #[error("program served in versions {low} to {high} only")]
    ProgMismatch {
        /// Lowest version served.
        low: u32,
        /// Highest version served.
        high: u32,
    },
    /// The program has no such procedure.
    #[error("no such procedure")]
    ProcUnavail,
    /// The arguments could not be decoded.
    #[error("arguments not understood")]
    GarbageArgs,
    /// The server failed.
    #[error("the server failed")]
    SystemErr,
    /// Another version of the RPC protocol is spoken.
    #[error("RPC versions {low} to {high} only")]
    RpcMismatch {
        /// Lowest version spoken.
        low: u32,
        /// Highest version spoken.
        high: u32,
    },
    /// The credential was not accepted, with its `auth_stat` (RFC 5531 §9).
    #[error("credential not accepted (auth_stat {0})")]
    Auth(u32),
}

impl From<xdr::Malformed> for Refusal {
    fn from(_: xdr::Malformed) -> Self {
        Refusal::GarbageArgs
    }
}

impl Refusal {
    fn to_stat(self) -> ReplyStat {
        let stat = match self {
            Refusal::ProgUnavail => AcceptStat::ProgUnavail,
            Refusal::ProgMismatch { low, high } => AcceptStat::ProgMismatch { low, high },
            Refusal::ProcUnavail => AcceptStat::ProcUnavail,
            Refusal::GarbageArgs => AcceptStat::GarbageArgs,
            Refusal::SystemErr => AcceptStat::SystemErr,
            Refusal::RpcMismatch { low, high } => return ReplyStat::Denied(RejectStat::RpcMismatch { low, high }),
            Refusal::Auth(stat) => return ReplyStat::Denied(RejectStat::AuthError(stat)),
        };
        ReplyStat::Accepted { verf: Auth::None, stat }
    }

    fn from_stat(stat: ReplyStat) -> Result<(), Self> {
        Err(match stat {
            ReplyStat::Accepted { stat, .. } => match stat {
                AcceptStat::Success => return Ok(()),
                AcceptStat::ProgUnavail => Refusal::ProgUnavail,
                AcceptStat::ProgMismatch { low, high } => Refusal::ProgMismatch { low, high },
                AcceptStat::ProcUnavail => Refusal::ProcUnavail,
                AcceptStat::GarbageArgs => Refusal::GarbageArgs,
                AcceptStat::SystemErr => Refusal::SystemErr,
            },
            ReplyStat::Denied(RejectStat::RpcMismatch { low, high }) => Refusal::RpcMismatch { low, high },
            ReplyStat::Denied(RejectStat::AuthError(stat)) => Refusal::Auth(stat),
        })
    }
}

/// What a connection may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Largest record accepted or sent, in bytes; a peer that sends a larger one is disconnected.
    pub record_max: usize,
    /// Calls of one connection in progress at a time, counted for each direction; further ones wait.
    pub in_flight: usize,
    /// Connections that a server holds; further ones are closed at once.
    pub connections_max: usize,
    /// How long a server that shuts down lets calls in progress finish.
    pub shutdown_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            record_max: limits::RECORD_MAX,
            in_flight: limits::IN_FLIGHT_PER_CONNECTION,
            connections_max: limits::CONNECTIONS_MAX,
            shutdown_grace: Duration::from_secs(5),
        }
    }
}
