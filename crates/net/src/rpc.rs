//! ONC RPC in both directions over one connection: calls, replies and callbacks told apart by message type.

mod connection;
mod inside;
mod memory;
mod outbox;
mod pending;
mod receive;
mod server;

pub use connection::{CallContext, Connection, NoService, Reply, Service};
pub use inside::Door;
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
    /// Connections that it holds of one machine ([`types::Machine`]); over Unix sockets, of one user.
    pub connections_per_peer: usize,
    /// Bytes of requests being worked on and of replies not yet sent that one connection may hold; while it holds as much
    /// it is not read from. At least twice `record_max` and a little more.
    pub connection_bytes: usize,
    /// Bytes that all connections of a server may hold so.
    pub total_bytes: usize,
    /// How long the first record of an accepted connection may take to begin.
    pub first_request: Duration,
    /// How long a record may take to arrive once it has begun, and a part of a reply to be taken once it is first in line,
    /// before the peer is disconnected.
    pub stall: Duration,
    /// The same while memory is short.
    pub stall_under_pressure: Duration,
    /// How long a server that shuts down lets calls in progress finish.
    pub shutdown_grace: Duration,
    /// Whether to connect to another machine from a port below 1024, which only the superuser may use, where this process may: the other end can ask for
    /// that before it takes our word for who asks.
    pub reserved_port: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            record_max: limits::RECORD_MAX,
            in_flight: limits::IN_FLIGHT_PER_CONNECTION,
            connections_max: limits::CONNECTIONS_MAX,
            connections_per_peer: limits::CONNECTIONS_PER_PEER_MAX,
            connection_bytes: limits::CONNECTION_BYTES_MAX,
            total_bytes: limits::NET_BYTES_MAX,
            first_request: limits::FIRST_REQUEST_TIME,
            stall: limits::STALL_TIME,
            stall_under_pressure: limits::STALL_TIME_UNDER_PRESSURE,
            shutdown_grace: Duration::from_secs(5),
            reserved_port: false,
        }
    }
}
