//! Parser of file names on the command line: `weir://host[:port]/path`, `weir:/path`, or a local path.

use crate::failure::Failure;
use client::Target;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The name of a file on the command line, parsed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Locator {
    /// The path of a file on this machine.
    Local(PathBuf),
    /// The URL of a file in a Weir file system.
    Remote(Target),
}

/// How a command interprets a name without a scheme.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BareName {
    /// The name is the path of a file on this machine (`weir cp`).
    Local,
    /// The name is a path below the directory that `WEIR_URL` names (all other commands).
    InsideBase,
}

/// Parses a file name of the command line: a URL, `weir:` and a path, or only a path. `base` is the value of
/// `WEIR_URL`, if the variable is set.
///
/// `%` begins an escape only in whole URLs. In all other file names, every byte stands for itself.
pub fn parse(name: &OsStr, bare: BareName, base: Option<&Target>) -> Result<Locator, Failure> {
    let bytes = name.as_bytes();
    if bytes.starts_with(b"weir://") {
        return url(name).map(Locator::Remote);
    }
    let inside = match (bytes.strip_prefix(b"weir:"), bare) {
        (Some(path), _) => path,
        (None, BareName::InsideBase) => bytes,
        (None, BareName::Local) if bytes.is_empty() => return Err(Failure::usage("the file name is empty")),
        (None, BareName::Local) => return Ok(Locator::Local(PathBuf::from(OsString::from_vec(bytes.to_vec())))),
    };
    let Some(base) = base else {
        return Err(Failure::usage(format!("{}: the file system is not given", crate::show::path(bytes)))
            .next("write weir://host/path, or export WEIR_URL=weir://host (\"weir up\" prints the line to type)"));
    };
    // The URL parser of the client splits a path into components. So append the path to the URL, with escaped bytes,
    // and call this parser.
    let mut text = base.to_string();
    text.push('/');
    for byte in inside {
        match byte {
            b'/' | b'.' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => text.push(char::from(*byte)),
            other => drop(write!(text, "%{other:02x}")),
        }
    }
    Ok(Locator::Remote(Target::parse(&text).map_err(Failure::from)?))
}

/// Parses a name that must name a file in a Weir file system.
pub fn parse_remote(name: &OsStr, base: Option<&Target>) -> Result<Target, Failure> {
    match parse(name, BareName::InsideBase, base)? {
        Locator::Remote(target) => Ok(target),
        Locator::Local(path) => Err(Failure::usage(format!("{}: not a weir:// name", path.display()))),
    }
}

/// Parses a whole URL, such as the value of `WEIR_URL`.
pub fn url(text: &OsStr) -> Result<Target, Failure> {
    // A name that a user types in a shell may contain bytes that are not UTF-8. Escape them before parsing.
    let mut escaped = String::new();
    for chunk in text.as_bytes().utf8_chunks() {
        escaped.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(escaped, "%{byte:02x}");
        }
    }
    Target::parse(&escaped).map_err(Failure::from)
}

/// Joins `dir` and `name` with one slash.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(dir.len() + name.len() + 1);
    out.extend_from_slice(dir);
    if !dir.ends_with(b"/") {
        out.push(b'/');
    }
    out.extend_from_slice(name);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    fn remote(url: &str) -> Result<Locator, Failure> {
        Ok(Locator::Remote(Target::parse(url).unwrap()))
    }

    #[test]
    fn names_without_a_host_resolve_below_the_base() {
        let base = Target::parse("weir://a:1/home/u").unwrap();
        let base = Some(&base);
        for (name, want) in [
            ("weir:/x", "weir://a:1/home/u/x"),
            ("weir:x//./y/", "weir://a:1/home/u/x/y"),
            ("weir:", "weir://a:1/home/u"),
            ("weir:..", "weir://a:1/home"),
            ("weir:a b%2F", "weir://a:1/home/u/a%20b%252F"),
            ("weir://b/x%20y", "weir://b/x%20y"),
        ] {
            assert_eq!(parse(name.as_ref(), BareName::Local, base), remote(want), "{name}");
        }
        assert_eq!(parse("/x".as_ref(), BareName::InsideBase, base), remote("weir://a:1/home/u/x"));
        assert_eq!(parse("x".as_ref(), BareName::Local, base), Ok(Locator::Local("x".into())));
    }

    #[test]
    fn names_that_are_not_utf8_keep_their_bytes() {
        let base = Target::parse("weir://a/").unwrap();
        for name in [&b"weir:\xff\n"[..], b"weir://a/\xff%0a"] {
            let Ok(Locator::Remote(target)) = parse(OsStr::from_bytes(name), BareName::Local, Some(&base)) else {
                panic!("{name:?}");
            };
            assert_eq!(target.name(), Some(&b"\xff\n"[..]));
        }
    }

    #[test]
    fn invalid_names_are_usage_errors() {
        for name in ["weir:/x", "weir:///x", "weir://h:0/", ""] {
            assert_eq!(parse(name.as_ref(), BareName::Local, None).unwrap_err().code, Exit::Usage, "{name}");
        }
        assert_eq!(parse("x".as_ref(), BareName::InsideBase, None).unwrap_err().code, Exit::Usage);
        assert_eq!(url("http://h".as_ref()).unwrap_err().code, Exit::Usage);
    }

    #[test]
    fn join_puts_one_slash_between_paths() {
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b"), b"/a/b");
    }
}
