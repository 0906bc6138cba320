//! ONC RPC in both directions over one connection: calls, replies and callbacks are distinguished by message type.

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

/// Reason why a peer did not execute a call; also the error result of a [`Service`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The server does not have the program.
    #[error("the server does not have this RPC program")]
    ProgUnavail,
    /// The server has other versions of the program.
    #[error("the server supports only versions {low} to {high} of this RPC program")]
    ProgMismatch {
        /// Lowest version served.
        low: u32,
        /// Highest version served.
        high: u32,
    },
    /// The program has no such procedure.
    #[error("the RPC program has no such procedure")]
    ProcUnavail,
    /// The arguments could not be decoded.
    #[error("the server could not decode the arguments")]
    GarbageArgs,
    /// The server failed.
    #[error("the server failed")]
    SystemErr,
    /// The peer uses another version of the RPC protocol.
    #[error("the server supports only RPC versions {low} to {high}")]
    RpcMismatch {
        /// Lowest version spoken.
        low: u32,
        /// Highest version spoken.
        high: u32,
    },
    /// The credential was refused, with its `auth_stat` (RFC 5531 §9).
    #[error("the server rejected the credential (auth_stat {0})")]
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

/// Limits of connections and their memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Largest record accepted or sent, in bytes; a peer that sends a larger one is disconnected.
    pub record_max: usize,
    /// Maximum number of calls in progress per connection, for each direction; further calls wait.
    pub in_flight: usize,
    /// Maximum number of connections of a server; further ones are closed at once.
    pub connections_max: usize,
    /// Maximum number of connections of one machine ([`types::Machine`]); over Unix sockets, of one user.
    pub connections_per_peer: usize,
    /// Maximum bytes of one connection for requests in progress and unsent replies. At the limit the server stops
    /// reading from the connection. Must be a little more than twice `record_max`.
    pub connection_bytes: usize,
    /// Maximum of these bytes for all connections of a server.
    pub total_bytes: usize,
    /// Time limit for the begin of the first record of an accepted connection.
    pub first_request: Duration,
    /// Time limit for a started record to arrive, and for the peer to take the first part of the send queue; afterwards
    /// the peer is disconnected.
    pub stall: Duration,
    /// The same limit while memory is short.
    pub stall_under_pressure: Duration,
    /// How long a server that shuts down waits for calls in progress.
    pub shutdown_grace: Duration,
    /// Whether to connect to other machines from a port below 1024, if this process may; only the superuser may use
    /// these ports. The other end can require such a port before it trusts the credentials of this client.
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
