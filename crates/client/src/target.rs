//! Targets `weir://host[:port]/path`, which name a file system and a file: parser and formatter.

use std::fmt;
use types::limits::{NAME_MAX, PATH_MAX};

/// The port of NFS (RFC 8881 §2.9.3).
pub const DEFAULT_PORT: u16 = 2049;

/// A parsed target `weir://host[:port]/path`.
///
/// In the path, `%` and two hexadecimal digits stand for one byte. Every other character stands for itself, including
/// `?` and `#`, because file names may contain them. Empty components and `.` are dropped. `..` removes the component
/// before it, without looking at the file system.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    host: String,
    port: u16,
    path: Vec<Vec<u8>>,
}

/// The error for a text that is not a valid target.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not a name on a Weir file system: {why} (expected weir://HOST[:PORT]/PATH)")]
pub struct BadTarget {
    /// The text that is not a valid target.
    pub text: String,
    /// Why the text is not a valid target.
    pub why: &'static str,
}

impl Target {
    /// Returns whether the text begins with `weir:`, which marks the text as a target even if the rest is not valid.
    pub fn is_target(text: &str) -> bool {
        text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("weir:"))
    }

    /// Parses a target.
    pub fn parse(text: &str) -> Result<Self, BadTarget> {
        let bad = |why| BadTarget { text: text.to_owned(), why };
        if !Self::is_target(text) {
            return Err(bad("it does not begin with weir://"));
        }
        let rest = text[5..].strip_prefix("//").ok_or_else(|| bad("two slashes must follow weir:"))?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = split_authority(authority).map_err(bad)?;
        let path = split_path(&percent_decode(path).map_err(bad)?).map_err(bad)?;
        Ok(Target { host: host.to_owned(), port, path })
    }

    /// Returns the host name or IP address; an IPv6 address has no brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the TCP port of the target.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the path components below the root, in order. None of them is empty, `.` or `..`.
    pub fn path(&self) -> &[Vec<u8>] {
        &self.path
    }

    /// Returns the last path component, or `None` for the root.
    pub fn name(&self) -> Option<&[u8]> {
        self.path.last().map(Vec::as_slice)
    }

    /// Returns the target of the parent directory, or `None` for the root.
    pub fn parent(&self) -> Option<Target> {
        let (_, parents) = self.path.split_last()?;
        Some(Target { path: parents.to_vec(), ..self.clone() })
    }

    /// Returns the target of the entry `name` in this directory. `name` must be one component, and neither `.` nor
    /// `..`.
    pub fn join(&self, name: &[u8]) -> Target {
        let mut joined = self.clone();
        joined.path.push(name.to_vec());
        joined
    }

    /// Returns whether both targets name the same host and port.
    pub fn same_server(&self, other: &Target) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }

    /// Returns `host:port`; an IPv6 address has brackets.
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

fn split_authority(authority: &str) -> Result<(&str, u16), &'static str> {
    if authority.contains('@') {
        return Err("it names a user; the identity is that of the process");
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("the bracket of its IPv6 address does not close")?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| "the text in brackets is not an IPv6 address")?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or("its port needs a colon")?) })
        }
        None => match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err("an IPv6 address must be in brackets"),
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err("the host is missing");
    }
    if host.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("its host contains a space");
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(text) if text.bytes().all(|b| b.is_ascii_digit()) => {
            text.parse().ok().filter(|port| *port > 0).ok_or("its port is not from 1 to 65535")?
        }
        Some(_) => return Err("its port is not from 1 to 65535"),
    };
    Ok((host, port))
}

fn percent_decode(text: &str) -> Result<Vec<u8>, &'static str> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|b| (b as char).to_digit(16)).map(|d| d as u8);
        let (high, low) = (digit(), digit());
        let pair = high.zip(low).ok_or("a % is not followed by two hexadecimal digits; write %25 for a % of a name")?;
        out.push(pair.0 << 4 | pair.1);
    }
    Ok(out)
}

fn split_path(path: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    if path.len() > PATH_MAX {
        return Err("its path is longer than 4095 bytes");
    }
    let mut out: Vec<Vec<u8>> = Vec::new();
    for component in path.split(|b| *b == b'/') {
        match component {
            b"" | b"." => {}
            b".." => drop(out.pop()),
            _ if component.contains(&0) => return Err("a name in it contains a zero byte"),
            _ if component.len() > NAME_MAX => return Err("a name in it is longer than 255 bytes"),
            _ => out.push(component.to_vec()),
        }
    }
    Ok(out)
}

impl std::str::FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        Target::parse(text)
    }
}

/// Formats the target so that [`Target::parse`] returns an equal target. Percent-encodes characters that are not
/// printable.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("weir://")?;
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        if self.port != DEFAULT_PORT {
            write!(f, ":{}", self.port)?;
        }
        if self.path.is_empty() {
            return f.write_str("/");
        }
        self.path.iter().try_for_each(|component| {
            f.write_str("/")?;
            component.utf8_chunks().try_for_each(|chunk| {
                for c in chunk.valid().chars() {
                    if c == '%' || c.is_whitespace() || c.is_control() {
                        let mut buffer = [0; 4];
                        c.encode_utf8(&mut buffer).bytes().try_for_each(|b| write!(f, "%{b:02X}"))?;
                    } else {
                        write!(f, "{c}")?;
                    }
                }
                chunk.invalid().iter().try_for_each(|b| write!(f, "%{b:02X}"))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> (String, u16, Vec<String>) {
        let t = Target::parse(text).unwrap();
        (t.host, t.port, t.path.into_iter().map(|c| String::from_utf8(c).unwrap()).collect())
    }

    #[test]
    fn valid_targets_are_parsed() {
        let path = |p: &[&str]| p.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        assert_eq!(parsed("weir://h"), ("h".into(), 2049, path(&[])));
        assert_eq!(parsed("weir://h:99/"), ("h".into(), 99, path(&[])));
        assert_eq!(parsed("WEIR://[::1]:7/a//b/./c/../d"), ("::1".into(), 7, path(&["a", "b", "d"])));
        assert_eq!(parsed("weir://h/../a%2Fb%20c?d#e"), ("h".into(), 2049, path(&["a", "b c?d#e"])));
        assert_eq!(Target::parse("weir://[::1]/x").unwrap().address(), "[::1]:2049");
    }

    #[test]
    fn invalid_targets_are_refused_with_the_reason() {
        for (text, why) in [
            ("/local", "it does not begin with weir://"),
            ("weird://h/", "it does not begin with weir://"),
            ("weir:/h", "two slashes must follow weir:"),
            ("weir:///path", "the host is missing"),
            ("weir://:80/", "the host is missing"),
            ("weir://h:0/", "its port is not from 1 to 65535"),
            ("weir://h:65536/", "its port is not from 1 to 65535"),
            ("weir://h:+1/", "its port is not from 1 to 65535"),
            ("weir://h:/", "its port is not from 1 to 65535"),
            ("weir://::1/", "an IPv6 address must be in brackets"),
            ("weir://[::1/", "the bracket of its IPv6 address does not close"),
            ("weir://[h]/", "the text in brackets is not an IPv6 address"),
            ("weir://[::1]80/", "its port needs a colon"),
            ("weir://me@h/", "it names a user; the identity is that of the process"),
            ("weir://a b/", "its host contains a space"),
            ("weir://h/100%", "a % is not followed by two hexadecimal digits; write %25 for a % of a name"),
            ("weir://h/%é", "a % is not followed by two hexadecimal digits; write %25 for a % of a name"),
            ("weir://h/a%00", "a name in it contains a zero byte"),
        ] {
            assert_eq!(Target::parse(text).unwrap_err().why, why, "{text}");
        }
        let long = format!("weir://h/{}", "x".repeat(256));
        assert_eq!(Target::parse(&long).unwrap_err().why, "a name in it is longer than 255 bytes");
    }

    #[test]
    fn parent_and_join_change_the_last_name() {
        let t = Target::parse("weir://h/a/b").unwrap();
        assert_eq!(t.name(), Some(&b"b"[..]));
        assert_eq!(t.parent().unwrap().to_string(), "weir://h/a");
        assert_eq!(t.parent().unwrap().join(b"%\xff").to_string(), "weir://h/a/%25%FF");
        let root = Target::parse("weir://h").unwrap();
        assert_eq!((root.name(), root.parent()), (None, None));
    }

    proptest! {
        #[test]
        fn text_round_trips(path in prop::collection::vec(prop::collection::vec(1u8..=255, 1..9), 0..5), port in 1u16..) {
            let keep = |c: &Vec<u8>| !c.contains(&b'/') && c != b"." && c != b"..";
            let t = Target { host: "h".into(), port, path: path.into_iter().filter(keep).collect() };
            prop_assert_eq!(Target::parse(&t.to_string()), Ok(t));
        }

        #[test]
        fn any_text_is_a_target_or_an_error(text in "(weir:)?/?/?.{0,40}") {
            let _ = Target::parse(&text);
        }
    }
}
