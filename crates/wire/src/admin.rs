//! The admin program: the RPC program with which `weir status`, `weir fsck` and other commands query a daemon.
//!
//! Later versions may add names and groups to [`Status`] at any time. So a command that displays a [`Status`] must
//! also display names and groups that it does not know.

mod check;
mod dump;
mod local_socket;
mod placement;
mod scrub;

pub use check::{CheckArgs, CheckReply, FINDINGS_MAX, Finding, Mended, Severity};
pub use dump::{DUMP_PAGE_MAX, DumpArgs, DumpReply};
pub use local_socket::{LocalSocketArgs, LocalSocketReply};
pub use placement::PlacementArgs;
pub use scrub::{
    SCRUB_FINDINGS_MAX, SCRUB_PATHS_MAX, SCRUB_RANGES_MAX, ScrubAction, ScrubArgs, ScrubFinding, ScrubReply, ScrubState,
};

use bytes::Bytes;
use xdr::{Malformed, Reader, Writer, Xdr};

/// RPC program number of the admin program: the number of the native data program plus one.
pub const PROGRAM: u32 = crate::native::PROGRAM + 1;
/// The only RPC version of the admin program.
pub const VERSION: u32 = 1;

/// Procedure NULL: does nothing (RFC 5531 §12.1).
pub const NULL: u32 = 0;
/// Procedure STATUS: returns named values that describe the daemon, for instance its counters. No arguments; the
/// result is a [`Status`].
pub const STATUS: u32 = 1;
/// Procedure CHECK: the mgr looks for damage in its metadata and on the iods, and repairs it on request ([`CheckArgs`]
/// to [`CheckReply`]). The caller needs AUTH_SYS credentials of the superuser or of the owner of the root directory.
pub const CHECK: u32 = 2;
/// Procedure SCRUB: the mgr looks for damage on the disks of the iods ([`ScrubArgs`] to [`ScrubReply`]). The caller
/// needs the same credentials as for CHECK.
pub const SCRUB: u32 = 3;
/// Procedure LOCAL_SOCKET: returns the path of the daemon's Unix socket to clients on the same machine
/// ([`LocalSocketArgs`] to
/// [`LocalSocketReply`]). Any caller may use LOCAL_SOCKET.
pub const LOCAL_SOCKET: u32 = 4;
/// Procedure DUMP: returns a dump of the metadata store ([`DumpArgs`] to [`DumpReply`]). The caller needs the same
/// credentials as for CHECK.
pub const DUMP: u32 = 5;
/// Procedure LOCAL_SOCKET_TO_ADMINISTER: returns the mgr's Unix socket to administrators on the same machine, even if
/// they may mount no export ([`LocalSocketArgs`] to [`LocalSocketReply`]). Over this socket the superuser may use CHECK
/// and SCRUB, because the kernel reports the peer's user id to the mgr.
pub const LOCAL_SOCKET_TO_ADMINISTER: u32 = 6;
/// Procedure PLACEMENT: returns which iods have the objects of a file ([`PlacementArgs`] to [`Status`]). The result has
/// no groups if the file has no objects.
pub const PLACEMENT: u32 = 7;

/// Maximum number of groups in one [`Status`].
pub const GROUPS_MAX: usize = 1024;
/// Maximum number of values in one [`Group`].
pub const VALUES_MAX: usize = 1024;
/// Maximum length of a name or of a text value, in bytes.
pub const TEXT_MAX: usize = 1024;

/// The named values of a daemon, which the STATUS procedure returns.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// The groups of values, in display order.
    pub groups: Vec<Group>,
}

/// A group of named values, for instance about one daemon, or the counters of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Group {
    /// Name of the group, for instance `mgr`, `iod` or `operations`. Several groups may have the same name.
    pub name: String,
    /// Names and values of the group, in display order.
    pub values: Vec<(String, Value)>,
}

/// A named value in the [`Status`] of a daemon: a number or a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A number: a count, or a size in bytes.
    Number(u64),
    /// A text, for instance an id or an address.
    Text(String),
}

impl Status {
    /// Returns the first group with this name, or `None` if no group has it.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|g| g.name == name)
    }
}

impl Group {
    /// Returns a group with this name and without values.
    pub fn new(name: &str) -> Self {
        Group { name: name.to_owned(), values: Vec::new() }
    }

    /// Appends a number with the name `name` to the values of the group.
    pub fn number(&mut self, name: &str, value: u64) {
        self.values.push((name.to_owned(), Value::Number(value)));
    }

    /// Appends a text with the name `name` to the values of the group.
    pub fn text(&mut self, name: &str, value: impl std::fmt::Display) {
        self.values.push((name.to_owned(), Value::Text(value.to_string())));
    }

    /// Returns the value with this name, or `None` if no value has it.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// Returns the number that is the value of the name `name`. Returns 0 if the group has no such name, or has a text
    /// under it.
    pub fn get_number(&self, name: &str) -> u64 {
        match self.get(name) {
            Some(Value::Number(n)) => *n,
            _ => 0,
        }
    }
}

fn put_text(out: &mut Writer, text: &str) {
    let cut = &text[..text.floor_char_boundary(TEXT_MAX)];
    out.opaque(&Bytes::copy_from_slice(cut.as_bytes()));
}

fn take_text(input: &mut Reader) -> Result<String, Malformed> {
    let bytes = input.opaque(TEXT_MAX)?;
    std::str::from_utf8(&bytes).map(str::to_owned).map_err(|_| Malformed::Invalid("text that is not UTF-8"))
}

impl Xdr for Status {
    fn encode(&self, out: &mut Writer) {
        out.array(&self.groups[..self.groups.len().min(GROUPS_MAX)], |out, group| group.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Status { groups: input.array(GROUPS_MAX, Group::decode)? })
    }
}

impl Xdr for Group {
    fn encode(&self, out: &mut Writer) {
        put_text(out, &self.name);
        out.array(&self.values[..self.values.len().min(VALUES_MAX)], |out, (name, value)| {
            put_text(out, name);
            value.encode(out);
        });
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let name = take_text(input)?;
        let values = input.array(VALUES_MAX, |input| Ok((take_text(input)?, Value::decode(input)?)))?;
        Ok(Group { name, values })
    }
}

impl Xdr for Value {
    fn encode(&self, out: &mut Writer) {
        match self {
            Value::Number(n) => {
                out.u32(0);
                out.u64(*n);
            }
            Value::Text(text) => {
                out.u32(1);
                put_text(out, text);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        match input.u32()? {
            0 => input.u64().map(Value::Number),
            1 => take_text(input).map(Value::Text),
            value => Err(Malformed::BadValue { what: "kind of a status value", value }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Status {
        let mut group = Group::new("g");
        group.number("n", 258);
        group.text("t", "äb");
        Status { groups: vec![group] }
    }

    #[test]
    fn messages_have_their_golden_bytes() {
        let want: &[u8] = &[
            0, 0, 0, 1, 0, 0, 0, 1, b'g', 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, b'n', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            1, 2, 0, 0, 0, 1, b't', 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0xc3, 0xa4, b'b', 0,
        ];
        assert_eq!(sample().to_bytes(), want);
        assert_eq!(Status::from_bytes(&Bytes::from_static(want)), Ok(sample()));
        for cut in 0..want.len() {
            assert!(Status::from_bytes(&Bytes::from_static(&want[..cut])).is_err(), "{cut} bytes");
        }
    }

    #[test]
    fn values_are_found_and_long_texts_are_truncated_between_characters() {
        let status = sample();
        let group = status.group("g").unwrap();
        assert_eq!((group.get_number("n"), group.get_number("t"), group.get("x")), (258, 0, None));
        let text = "é".repeat(TEXT_MAX);
        let decoded = Value::from_bytes(&Value::Text(text).to_bytes()).unwrap();
        assert_eq!(decoded, Value::Text("é".repeat(TEXT_MAX / 2)));
    }

    #[test]
    fn bad_values_are_refused() {
        assert!(Value::from_bytes(&Bytes::from_static(&[0, 0, 0, 2, 0, 0, 0, 0])).is_err());
        assert!(Value::from_bytes(&Bytes::from_static(&[0, 0, 0, 1, 0, 0, 0, 1, 0xff, 0, 0, 0])).is_err());
        assert!(Status::from_bytes(&Bytes::from_static(&[0, 0, 4, 1])).is_err());
    }
}
