//! ONC RPC in both directions over one connection: client and server can both send calls. The message type (CALL or
//! REPLY) distinguishes calls from replies.

mod connection;
mod in_process;
mod memory;
mod outbox;
mod pending;
mod receive;
mod server;

pub use connection::{CallContext, Connection, NoService, Reply, Service};
pub use in_process::InProcessConnector;
pub use server::{Server, serve};

use std::time::Duration;
use types::limits;
use wire::rpc::{AcceptStat, Auth, RejectStat, ReplyStat};

/// The reason why a peer did not execute a call, and the error type of a [`Service`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// PROG_UNAVAIL: the server does not serve this program.
    #[error("the server does not have this RPC program")]
    ProgUnavail,
    /// PROG_MISMATCH: the server serves other versions of this program.
    #[error("the server supports only versions {low} to {high} of this RPC program")]
    ProgMismatch {
        /// Lowest version of the program that the server serves.
        low: u32,
        /// Highest version of the program that the server serves.
        high: u32,
    },
    /// PROC_UNAVAIL: the program has no procedure with this number.
    #[error("the RPC program has no such procedure")]
    ProcUnavail,
    /// GARBAGE_ARGS: the server could not decode the arguments.
    #[error("the server could not decode the arguments")]
    GarbageArgs,
    /// SYSTEM_ERR: the server failed, for instance because the call panicked.
    #[error("the server failed")]
    SystemErr,
    /// RPC_MISMATCH: the server uses other versions of the RPC protocol.
    #[error("the server supports only RPC versions {low} to {high}")]
    RpcMismatch {
        /// Lowest version of the RPC protocol that the server uses.
        low: u32,
        /// Highest version of the RPC protocol that the server uses.
        high: u32,
    },
    /// AUTH_ERROR: the server refused the credential. The number is an `auth_stat` (RFC 5531 §9).
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

/// Limits on connections and on the memory that they may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum length of a record in bytes, sent or received. If a peer sends a record beyond this length, this
    /// process closes the connection.
    pub record_max: usize,
    /// Maximum number of calls in progress on one connection, for incoming calls and for outgoing calls separately.
    /// Further calls wait for a slot.
    pub in_flight: usize,
    /// Maximum number of connections of a server. The server closes further connections at once.
    pub connections_max: usize,
    /// Maximum number of connections from one machine ([`types::Machine`]). Over Unix sockets, each user counts as a
    /// machine.
    pub connections_per_peer: usize,
    /// Maximum number of bytes that the requests in progress and the unsent replies of one connection may use. At this
    /// limit the server stops reading from the connection. Must be a little more than twice [`Limits::record_max`], so
    /// that one large call and its reply fit.
    pub connection_bytes: usize,
    /// Maximum number of bytes that the requests in progress and the unsent replies of all connections of a server may
    /// use.
    pub total_bytes: usize,
    /// Time limit for the first record of an accepted connection to begin to arrive.
    pub first_request: Duration,
    /// Time limit for the rest of a record to arrive, and for the peer to accept the oldest data in the send queue. A
    /// peer that exceeds the limit is disconnected.
    pub stall: Duration,
    /// The time limit that replaces [`Limits::stall`] while the server is short of memory.
    pub stall_under_pressure: Duration,
    /// How long a server that shuts down waits for calls in progress to complete.
    pub shutdown_grace: Duration,
    /// Whether this client connects to other machines from a port below 1024. Only the superuser may use such ports,
    /// so a server can trust the credentials in calls from such a port. Without permission for such a port, the client
    /// uses another port.
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
