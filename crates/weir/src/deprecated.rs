//! Deprecated names: accepted for one release, each with one warning line on standard error.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Deprecated options, with their new names.
const OPTIONS: [(&str, &str); 5] = [
    ("--no-direct", "--mgr-path"),
    ("--gather-delay-ms", "--mgr-gather-delay-ms"),
    ("--layout", "--kernel-layout"),
    ("--lend", "--short-circuit"),
    ("--no-lent", "--no-short-circuit"),
];

/// Deprecated options of mount(8), with their new names.
const MOUNT_OPTIONS: [(&str, &str); 2] = [("no_direct", "mgr_path"), ("no_lent", "no_short_circuit")];

/// Deprecated keys of `iod.toml`, with their new names.
const IOD_KEYS: [(&str, &str); 1] = [("lend", "short_circuit")];

/// The option of the background process of a mount. It has the command line of the process in the foreground, which has
/// printed the warnings.
const BACKGROUND: &str = "--background";

/// The deprecated names of which this process has warned.
static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Warns that `old` is deprecated, unless this process has done so.
pub fn warn(old: &str, new: &str) {
    let first = WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(old.to_owned());
    if first && !std::env::args_os().any(|arg| arg == BACKGROUND) {
        eprintln!("weir: {old} is deprecated, and the next release refuses it: write {new}");
    }
}

/// Replaces deprecated options of a command line, with and without a value after `=`, and warns of them.
pub fn rename(args: Vec<OsString>) -> Vec<OsString> {
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let renamed = |(at, arg): (usize, OsString)| {
        let text = arg.to_str().filter(|_| at < end)?;
        let (name, value) = text.find('=').map_or((text, ""), |at| text.split_at(at));
        let (old, new) = OPTIONS.iter().find(|(old, _)| *old == name)?;
        warn(old, new);
        Some(OsString::from(format!("{new}{value}")))
    };
    args.into_iter().enumerate().map(|(at, arg)| renamed((at, arg.clone())).unwrap_or(arg)).collect()
}

/// Returns the present name of an option of mount(8), and warns of a deprecated one.
pub fn mount_option(name: &str) -> &str {
    let Some((old, new)) = MOUNT_OPTIONS.iter().find(|(old, _)| *old == name) else { return name };
    warn(old, new);
    new
}

/// Warns of deprecated names and values in the text of a policy, such as `layout=open`.
pub fn warn_of_policy(text: &str) {
    layout::policy::former_words(text).for_each(|(old, new)| warn(old, new));
}

/// Warns of deprecated keys in the `iod.toml` at `path`, which has been parsed.
pub fn warn_of_keys(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    for key in text.lines().filter_map(|line| line.split_once('=')).map(|(key, _)| key.trim()) {
        IOD_KEYS.iter().filter(|(old, _)| *old == key).for_each(|(old, new)| warn(old, new));
    }
}

/// Parses an export of the command line, and warns of deprecated names in it.
pub fn export(text: &str) -> Result<mgr::Export, String> {
    let export: mgr::Export = text.parse()?;
    for (key, value) in text.split(',').filter_map(|term| term.split_once('=')) {
        match key {
            "layout" => warn("layout", "kernel_layout"),
            "policy" => warn_of_policy(&value.replace('+', ",")),
            _ => {}
        }
    }
    Ok(export)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deprecated_options_get_their_present_names() {
        let line = ["weir", "cat", "--no-direct", "--json=x", "--", "--no-direct"].map(OsString::from).to_vec();
        assert_eq!(rename(line), ["weir", "cat", "--mgr-path", "--json=x", "--", "--no-direct"]);
        assert_eq!((mount_option("no_direct"), mount_option("hard")), ("mgr_path", "hard"));
        assert_eq!(mount_option("no_lent"), "no_short_circuit");
    }
}
