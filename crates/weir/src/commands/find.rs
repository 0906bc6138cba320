//! `weir find`: walks a tree and prints the files that match.

use crate::failure::{Failure, Outcome};
use crate::session::{Connect, for_each, run as with_mounts};
use crate::{glob, show};
use client::{Mount, Node, Target};
use layout::policy::parse_size;
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use types::{Attrs, FileKind, Timestamp};

/// Options of `weir find` that users may write with one dash, as in find(1).
const SINGLE_DASH: [&str; 9] = ["name", "path", "type", "size", "mtime", "maxdepth", "mindepth", "empty", "print0"];

/// Search directory trees and print the files that match all conditions
#[derive(clap::Args)]
#[command(after_help = "Options may be written with one dash, as in find(1).

Examples:
  weir find / -name '*.log'
  weir find /project -type f -size +1G
  weir find / -type l,d -maxdepth 2
  weir find / -mtime -1 --json")]
pub struct Args {
    /// Where to start [default: the directory that WEIR_URL names]
    paths: Vec<OsString>,
    /// Match the name with this pattern: *, ?, [a-z]
    #[arg(long, value_name = "PATTERN")]
    name: Option<OsString>,
    /// Match the whole path with this pattern; * also matches slashes
    #[arg(long, value_name = "PATTERN")]
    path: Option<OsString>,
    /// Match the type: f, d, l, p, s, b, c; several types are separated by commas
    #[arg(long = "type", value_name = "KINDS", value_parser = kinds)]
    kinds: Option<Kinds>,
    /// Match the size: +N larger, -N smaller, N exactly; N in bytes or with K, M, G, T
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    size: Option<Bound>,
    /// Match the modification time: -N less than, +N more than N days ago
    #[arg(long, value_name = "DAYS", value_parser = days, allow_hyphen_values = true)]
    mtime: Option<Bound>,
    /// Descend at most this many levels; 0: only the starting points
    #[arg(long, value_name = "LEVELS")]
    maxdepth: Option<usize>,
    /// Do not match names on the first N levels; 1: skip the starting points
    #[arg(long, value_name = "LEVELS", default_value_t = 0)]
    mindepth: usize,
    /// Match empty files and directories
    #[arg(long)]
    empty: bool,
    /// End each path with a NUL byte, without quoting
    #[arg(long, conflicts_with = "json")]
    print0: bool,
    /// Print one JSON object per line, with all attributes
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: Connect,
}

/// A condition on a size or an age: a lower limit, an upper limit or an exact value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bound {
    Above(u64),
    Below(u64),
    Exactly(u64),
}

/// The letters of the file types that `-type` matches.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Kinds(Vec<char>);

/// Gives the options of `weir find` two dashes if the user wrote one dash, as in find(1). Leaves the command lines of
/// commands other than `weir find` unchanged.
pub fn expand(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut out: Vec<OsString> = args.into_iter().collect();
    let Some(command) = out.iter().skip(1).position(|arg| !arg.as_bytes().starts_with(b"-")) else { return out };
    if out[command + 1] != "find" {
        return out;
    }
    for arg in out.iter_mut().skip(command + 2) {
        let known = arg.to_str().and_then(|text| text.strip_prefix('-')).filter(|name| SINGLE_DASH.contains(name));
        if let Some(name) = known {
            *arg = format!("--{name}").into();
        }
    }
    out
}

fn bound(text: &str, number: impl Fn(&str) -> Option<u64>) -> Option<Bound> {
    Some(match text.split_at_checked(1)? {
        ("+", rest) => Bound::Above(number(rest)?),
        ("-", rest) => Bound::Below(number(rest)?),
        _ => Bound::Exactly(number(text)?),
    })
}

fn size(text: &str) -> Result<Bound, String> {
    bound(text, parse_size).ok_or_else(|| "not a size; write +1M, -64K or 4096".to_owned())
}

fn days(text: &str) -> Result<Bound, String> {
    bound(text, |n| n.parse().ok()).ok_or_else(|| "not a number of days; write -1 or +30".to_owned())
}

fn kinds(text: &str) -> Result<Kinds, String> {
    let letters: Option<Vec<char>> =
        text.split(',').map(|part| part.parse::<char>().ok().filter(|c| "fdlpsbc".contains(*c))).collect();
    letters.map(Kinds).ok_or_else(|| "not file types; write f, d, l, p, s, b or c, separated by commas".to_owned())
}

impl Bound {
    fn holds(self, n: u64) -> bool {
        match self {
            Bound::Above(limit) => n > limit,
            Bound::Below(limit) => n < limit,
            Bound::Exactly(wanted) => n == wanted,
        }
    }
}

impl Kinds {
    fn has(&self, kind: FileKind) -> bool {
        self.0.contains(&match kind {
            FileKind::Regular => 'f',
            other => show::letter(other),
        })
    }
}

#[derive(Serialize)]
struct JsonFound {
    #[serde(flatten)]
    path: show::JsonPath,
    #[serde(flatten)]
    attrs: show::JsonAttrs,
}

/// Runs `weir find`.
pub fn run(args: Args) -> Outcome {
    let targets = match args.paths.is_empty() {
        true => vec![args.connect.target_or_base(None)?],
        false => args.connect.targets(&args.paths)?,
    };
    let now = Timestamp::from(std::time::SystemTime::now());
    with_mounts(&args.connect, async |mounts| {
        for_each(&targets, async |target| {
            let mount = mounts.get(target).await?;
            walk(&mount, target, &args, now).await.map_err(|e| e.about(target))
        })
        .await
    })
}

/// A file or directory that the walk through the tree has reached.
struct Visited {
    path: Vec<u8>,
    name: Vec<u8>,
    node: Node,
    attrs: Attrs,
    depth: usize,
}

async fn walk(mount: &Mount, target: &Target, args: &Args, now: Timestamp) -> Result<(), Failure> {
    let (node, attrs) = mount.resolve(target.path(), false).await?;
    let name = target.name().unwrap_or(b"/").to_vec();
    let mut waiting = vec![Visited { path: show::absolute(target.path()), name, node, attrs, depth: 0 }];
    while let Some(visited) = waiting.pop() {
        let mut below = Vec::new();
        let deeper = args.maxdepth.is_none_or(|max| visited.depth < max);
        if visited.attrs.kind == FileKind::Directory && (deeper || args.empty) {
            let mut pages = mount.readdir(&visited.node);
            while let Some(page) = pages.next_page().await? {
                for mut entry in page {
                    entry.attrs = mount.entry_attrs(&entry).await?;
                    below.push(entry);
                }
                if !deeper {
                    break;
                }
            }
        }
        if visited.depth >= args.mindepth && matches(args, &visited, below.is_empty(), now) {
            print(args, &visited)?;
        }
        if deeper {
            below.sort_unstable_by(|a, b| b.name.cmp(&a.name));
            waiting.extend(below.into_iter().map(|entry| Visited {
                path: crate::locator::join(&visited.path, &entry.name),
                name: entry.name.to_vec(),
                node: entry.node,
                attrs: entry.attrs,
                depth: visited.depth + 1,
            }));
        }
    }
    Ok(())
}

fn matches(args: &Args, visited: &Visited, no_entries: bool, now: Timestamp) -> bool {
    let pattern = |pattern: &Option<OsString>, text: &[u8]| {
        pattern.as_ref().is_none_or(|pattern| glob::matches(pattern.as_bytes(), text))
    };
    let empty = match visited.attrs.kind {
        FileKind::Directory => no_entries,
        FileKind::Regular => visited.attrs.size == 0,
        _ => false,
    };
    let age_days = now.since(visited.attrs.mtime).as_secs() / 86_400;
    pattern(&args.name, &visited.name)
        && pattern(&args.path, &visited.path)
        && args.kinds.as_ref().is_none_or(|kinds| kinds.has(visited.attrs.kind))
        && args.size.is_none_or(|bound| bound.holds(visited.attrs.size))
        && args.mtime.is_none_or(|bound| bound.holds(age_days))
        && (!args.empty || empty)
}

fn print(args: &Args, visited: &Visited) -> Result<(), Failure> {
    if args.json {
        return show::json(&JsonFound { path: visited.path.as_slice().into(), attrs: (&visited.attrs).into() });
    }
    if args.print0 {
        show::raw(&visited.path)?;
        return show::raw(b"\0");
    }
    show::line(&show::path(&visited.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dash_becomes_two_for_find_only() {
        let expand = |line: &str| {
            let out = super::expand(line.split(' ').map(OsString::from));
            out.into_iter().map(|arg| arg.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(expand("weir find / -name x -type f -v -size -1M"), "weir find / --name x --type f -v --size -1M");
        assert_eq!(expand("weir -v find -empty"), "weir -v find --empty");
        assert_eq!(expand("weir ls -name"), "weir ls -name");
        assert_eq!(expand("weir"), "weir");
    }

    #[test]
    fn size_days_and_type_conditions_are_parsed() {
        assert_eq!(size("+1K"), Ok(Bound::Above(1024)));
        assert_eq!(size("-1"), Ok(Bound::Below(1)));
        assert_eq!(size("7"), Ok(Bound::Exactly(7)));
        assert_eq!(days("-3"), Ok(Bound::Below(3)));
        for bad in ["", "+", "x", "+x", "é"] {
            assert!(size(bad).is_err() && days(bad).is_err(), "{bad}");
        }
        assert!(kinds("f,l").unwrap().has(FileKind::Regular));
        assert!(!kinds("d").unwrap().has(FileKind::Regular));
        assert!(kinds("x").is_err() && kinds("").is_err());
    }
}
