//! ONC RPC version 2 (RFC 5531): call and reply headers, credentials and record marking.

pub mod record;

use bytes::Bytes;
use types::Cred;
use types::limits::AUTH_BODY_MAX;
use xdr::{Malformed, Reader, Writer, Xdr};

/// The version of the RPC protocol itself (RFC 5531 §9).
pub const RPC_VERSION: u32 = 2;
/// Maximum length of the machine name in AUTH_SYS, in bytes (RFC 5531 appendix A).
pub const MACHINE_MAX: usize = 255;
/// Maximum number of supplementary groups in AUTH_SYS (RFC 5531 appendix A).
pub const GROUPS_MAX: usize = 16;

const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
const CALL: u32 = 0;
const REPLY: u32 = 1;

/// A credential or a verifier of an RPC message (`opaque_auth`, RFC 5531 §8.2).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Auth {
    /// AUTH_NONE. Its body has no meaning, so the decoder discards it.
    #[default]
    None,
    /// AUTH_SYS with a valid body.
    Sys(AuthSys),
    /// Any other flavor, or AUTH_SYS with an invalid body.
    Other {
        /// The number of the flavor (RFC 5531 §8.2).
        flavor: u32,
        /// The body of the credential or verifier, at most 400 bytes.
        body: Bytes,
    },
}

/// The body of an AUTH_SYS credential (`authsys_parms`, RFC 5531 appendix A).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuthSys {
    /// An arbitrary number that the caller chooses; the server ignores it (RFC 5531, appendix A).
    pub stamp: u32,
    /// Name of the caller's machine, at most 255 bytes.
    pub machine: Bytes,
    /// Effective user id of the caller.
    pub uid: u32,
    /// Effective group id of the caller.
    pub gid: u32,
    /// Supplementary groups of the caller, at most 16.
    pub gids: Vec<u32>,
}

impl AuthSys {
    /// Returns the AUTH_SYS body for the credentials `cred`. Omits groups beyond the sixteenth, because AUTH_SYS has no
    /// space for more.
    pub fn new(cred: &Cred, machine: &str) -> Self {
        let machine = Bytes::copy_from_slice(&machine.as_bytes()[..machine.len().min(MACHINE_MAX)]);
        let gids = cred.groups.iter().copied().take(GROUPS_MAX).collect();
        AuthSys { stamp: 0, machine, uid: cred.uid, gid: cred.gid, gids }
    }

    /// Returns the credentials that this AUTH_SYS body stands for.
    pub fn cred(&self) -> Cred {
        Cred { uid: self.uid, gid: self.gid, groups: self.gids.clone() }
    }
}

impl Xdr for AuthSys {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.stamp);
        out.opaque(&self.machine);
        out.u32(self.uid);
        out.u32(self.gid);
        out.array(&self.gids, |out, gid| out.u32(*gid));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(AuthSys {
            stamp: input.u32()?,
            machine: input.opaque(MACHINE_MAX)?,
            uid: input.u32()?,
            gid: input.u32()?,
            gids: input.array(GROUPS_MAX, Reader::u32)?,
        })
    }
}

impl Xdr for Auth {
    fn encode(&self, out: &mut Writer) {
        match self {
            Auth::None => {
                out.u32(AUTH_NONE);
                out.u32(0);
            }
            Auth::Sys(sys) => {
                out.u32(AUTH_SYS);
                out.nested(|out| sys.encode(out));
            }
            Auth::Other { flavor, body } => {
                out.u32(*flavor);
                out.opaque(body);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let flavor = input.u32()?;
        let body = input.opaque(AUTH_BODY_MAX)?;
        Ok(match flavor {
            AUTH_NONE => Auth::None,
            AUTH_SYS => match AuthSys::from_bytes(&body) {
                Ok(sys) => Auth::Sys(sys),
                Err(_) => Auth::Other { flavor, body },
            },
            _ => Auth::Other { flavor, body },
        })
    }
}

/// The header of an RPC call (`call_body`, RFC 5531 §9). The encoded arguments follow the header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallHeader {
    /// Transaction id (xid), which the caller chooses and the reply repeats.
    pub xid: u32,
    /// RPC program number.
    pub program: u32,
    /// Version of the RPC program.
    pub version: u32,
    /// Procedure number in the RPC program.
    pub procedure: u32,
    /// Credential of the caller.
    pub cred: Auth,
    /// Verifier of the credential.
    pub verf: Auth,
}

/// The header of an RPC reply (`reply_body`, RFC 5531 §9). Results follow the header only after
/// [`AcceptStat::Success`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplyHeader {
    /// The transaction id (xid) of the call.
    pub xid: u32,
    /// The outcome of the call.
    pub stat: ReplyStat,
}

/// The outcome of an RPC call (`reply_stat`, RFC 5531 §9).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplyStat {
    /// MSG_ACCEPTED: the server accepted the call.
    Accepted {
        /// The verifier of the server.
        verf: Auth,
        /// Whether the server executed the call, or why not.
        stat: AcceptStat,
    },
    /// MSG_DENIED: the server denied the call.
    Denied(RejectStat),
}

/// Whether the server executed an accepted call (`accept_stat`, RFC 5531 §9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AcceptStat {
    /// SUCCESS: the server executed the call, and the results follow.
    Success,
    /// PROG_UNAVAIL: the server does not serve this program.
    ProgUnavail,
    /// PROG_MISMATCH: the server serves other versions of this program.
    ProgMismatch {
        /// Lowest version of the program that the server serves.
        low: u32,
        /// Highest version of the program that the server serves.
        high: u32,
    },
    /// PROC_UNAVAIL: the program has no procedure with this number.
    ProcUnavail,
    /// GARBAGE_ARGS: the server could not decode the arguments.
    GarbageArgs,
    /// SYSTEM_ERR: the server failed, for instance because it is out of memory.
    SystemErr,
}

/// Why the server denied a call (`reject_stat`, RFC 5531 §9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RejectStat {
    /// RPC_MISMATCH: the server uses other versions of the RPC protocol.
    RpcMismatch {
        /// Lowest version of the RPC protocol that the server uses.
        low: u32,
        /// Highest version of the RPC protocol that the server uses.
        high: u32,
    },
    /// AUTH_ERROR: the server rejects the credential or the verifier. The number is an `auth_stat` (RFC 5531 §9).
    AuthError(u32),
}

/// AUTH_BADCRED (`auth_stat`): the server could not decode the credential.
pub const AUTH_BADCRED: u32 = 1;
/// AUTH_REJECTEDCRED (`auth_stat`): the server does not accept this credential from this peer.
pub const AUTH_REJECTEDCRED: u32 = 2;
/// AUTH_TOOWEAK (`auth_stat`): the server does not accept this flavor of credentials.
pub const AUTH_TOOWEAK: u32 = 5;

/// The header of an RPC message. The decoder leaves the rest of the message in the reader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// An RPC call.
    Call(CallHeader),
    /// An RPC reply.
    Reply(ReplyHeader),
    /// A call in another version of the RPC protocol. The server denies it with [`RejectStat::RpcMismatch`].
    WrongVersion {
        /// Transaction id (xid) of the call.
        xid: u32,
    },
}

/// Decodes the header of an RPC message. The arguments or results remain in `input`.
pub fn decode_message(input: &mut Reader) -> Result<Message, Malformed> {
    let xid = input.u32()?;
    match input.u32()? {
        CALL if input.u32()? != RPC_VERSION => Ok(Message::WrongVersion { xid }),
        CALL => Ok(Message::Call(CallHeader {
            xid,
            program: input.u32()?,
            version: input.u32()?,
            procedure: input.u32()?,
            cred: Auth::decode(input)?,
            verf: Auth::decode(input)?,
        })),
        REPLY => Ok(Message::Reply(ReplyHeader { xid, stat: ReplyStat::decode(input)? })),
        value => Err(Malformed::BadValue { what: "msg_type", value }),
    }
}

impl CallHeader {
    /// Encodes the header of the call. The caller appends the arguments.
    pub fn encode(&self, out: &mut Writer) {
        for word in [self.xid, CALL, RPC_VERSION, self.program, self.version, self.procedure] {
            out.u32(word);
        }
        self.cred.encode(out);
        self.verf.encode(out);
    }
}

impl ReplyHeader {
    /// Returns the header of a reply with results, for the call with this xid.
    pub fn success(xid: u32) -> Self {
        ReplyHeader { xid, stat: ReplyStat::Accepted { verf: Auth::None, stat: AcceptStat::Success } }
    }

    /// Encodes the header of the reply. The caller appends the results, if any.
    pub fn encode(&self, out: &mut Writer) {
        out.u32(self.xid);
        out.u32(REPLY);
        self.stat.encode(out);
    }
}

impl Xdr for ReplyStat {
    fn encode(&self, out: &mut Writer) {
        match self {
            ReplyStat::Accepted { verf, stat } => {
                out.u32(0);
                verf.encode(out);
                stat.encode(out);
            }
            ReplyStat::Denied(stat) => {
                out.u32(1);
                stat.encode(out);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        match input.u32()? {
            0 => Ok(ReplyStat::Accepted { verf: Auth::decode(input)?, stat: AcceptStat::decode(input)? }),
            1 => Ok(ReplyStat::Denied(RejectStat::decode(input)?)),
            value => Err(Malformed::BadValue { what: "reply_stat", value }),
        }
    }
}

impl Xdr for AcceptStat {
    fn encode(&self, out: &mut Writer) {
        match *self {
            AcceptStat::Success => out.u32(0),
            AcceptStat::ProgUnavail => out.u32(1),
            AcceptStat::ProgMismatch { low, high } => [2, low, high].into_iter().for_each(|word| out.u32(word)),
            AcceptStat::ProcUnavail => out.u32(3),
            AcceptStat::GarbageArgs => out.u32(4),
            AcceptStat::SystemErr => out.u32(5),
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(match input.u32()? {
            0 => AcceptStat::Success,
            1 => AcceptStat::ProgUnavail,
            2 => AcceptStat::ProgMismatch { low: input.u32()?, high: input.u32()? },
            3 => AcceptStat::ProcUnavail,
            4 => AcceptStat::GarbageArgs,
            5 => AcceptStat::SystemErr,
            value => return Err(Malformed::BadValue { what: "accept_stat", value }),
        })
    }
}

impl Xdr for RejectStat {
    fn encode(&self, out: &mut Writer) {
        match *self {
            RejectStat::RpcMismatch { low, high } => [0, low, high].into_iter().for_each(|word| out.u32(word)),
            RejectStat::AuthError(stat) => [1, stat].into_iter().for_each(|word| out.u32(word)),
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        match input.u32()? {
            0 => Ok(RejectStat::RpcMismatch { low: input.u32()?, high: input.u32()? }),
            1 => Ok(RejectStat::AuthError(input.u32()?)),
            value => Err(Malformed::BadValue { what: "reject_stat", value }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_the_bytes_of_the_rfc() {
        let sys = AuthSys { stamp: 5, machine: "me".into(), uid: 10, gid: 20, gids: vec![30, 40] };
        let call =
            CallHeader { xid: 7, program: 100003, version: 4, procedure: 1, cred: Auth::Sys(sys), verf: Auth::None };
        let mut out = Writer::new();
        call.encode(&mut out);
        out.u32(0xdead_beef);
        let words = [7, 0, 2, 100003, 4, 1, 1, 32, 5, 2, 0x6d65_0000, 10, 20, 2, 30, 40, 0, 0, 0xdead_beefu32];
        let bytes = out.finish().to_bytes();
        assert_eq!(bytes, words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<u8>>());
        let mut input = Reader::new(bytes);
        assert_eq!(decode_message(&mut input), Ok(Message::Call(call)));
        assert_eq!(input.u32(), Ok(0xdead_beef));
    }

    #[test]
    fn replies_round_trip() {
        let accepted = |stat| ReplyStat::Accepted { verf: Auth::None, stat };
        for stat in [
            accepted(AcceptStat::Success),
            accepted(AcceptStat::ProgUnavail),
            accepted(AcceptStat::ProgMismatch { low: 1, high: 4 }),
            accepted(AcceptStat::ProcUnavail),
            accepted(AcceptStat::GarbageArgs),
            accepted(AcceptStat::SystemErr),
            ReplyStat::Denied(RejectStat::RpcMismatch { low: 2, high: 2 }),
            ReplyStat::Denied(RejectStat::AuthError(AUTH_TOOWEAK)),
        ] {
            let reply = ReplyHeader { xid: 9, stat };
            let mut out = Writer::new();
            reply.encode(&mut out);
            let mut input = Reader::new(out.finish().to_bytes());
            assert_eq!(decode_message(&mut input), Ok(Message::Reply(reply)));
            assert_eq!(input.remaining(), 0);
        }
    }

    #[test]
    fn unusual_credentials_are_distinguished() {
        let decode = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
            Auth::decode(&mut Reader::new(bytes.into()))
        };
        assert_eq!(decode(&[0, 0]), Ok(Auth::None));
        let short = Bytes::from_static(&[0, 0, 0, 1]);
        assert_eq!(decode(&[1, 4, 1]), Ok(Auth::Other { flavor: 1, body: short.clone() }));
        assert_eq!(decode(&[7, 4, 1]), Ok(Auth::Other { flavor: 7, body: short }));
        assert_eq!(decode(&[6, 404]), Err(Malformed::TooLong { len: 404, max: 400 }));
        let seventeen: Vec<u32> = [1, 84, 0, 0, 0, 0, 17].into_iter().chain(0..17).collect();
        assert!(matches!(decode(&seventeen), Ok(Auth::Other { flavor: 1, .. })));
    }

    #[test]
    fn another_rpc_version_is_recognized() {
        let bytes: Vec<u8> = [3u32, 0, 1].iter().flat_map(|w| w.to_be_bytes()).collect();
        assert_eq!(decode_message(&mut Reader::new(bytes.into())), Ok(Message::WrongVersion { xid: 3 }));
    }
}
