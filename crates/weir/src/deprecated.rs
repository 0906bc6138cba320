//! Deprecated names of options: accepted for one release, with one warning line per name on standard error.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Deprecated command-line options, each with its new name.
const OPTIONS: [(&str, &str); 5] = [
    ("--no-direct", "--mgr-path"),
    ("--gather-delay-ms", "--mgr-gather-delay-ms"),
    ("--layout", "--kernel-layout"),
    ("--lend", "--short-circuit"),
    ("--no-lent", "--no-short-circuit"),
];

/// Deprecated options of mount(8), each with its new name.
const MOUNT_OPTIONS: [(&str, &str); 2] = [("no_direct", "mgr_path"), ("no_lent", "no_short_circuit")];

/// Deprecated keys of `iod.toml`, each with its new name.
const IOD_KEYS: [(&str, &str); 1] = [("lend", "short_circuit")];

/// The option that marks the background process of a mount. This process gets the same command line as the foreground
/// process, which has already printed the warnings about deprecated options. So the background process prints no
/// warnings.
const BACKGROUND: &str = "--background";

/// Deprecated names about which this process has printed a warning.
static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Prints a warning that `old` is deprecated, once per name and process.
pub fn warn(old: &str, new: &str) {
    let first = WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(old.to_owned());
    if first && !std::env::args_os().any(|arg| arg == BACKGROUND) {
        eprintln!("weir: {old} is deprecated, and the next release refuses it: write {new}");
    }
}

/// Replaces deprecated options in a command line, also in the form `--option=value`, and prints a warning for each.
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

/// Returns the current name of an option of mount(8). Prints a warning if `name` is deprecated.
pub fn mount_option(name: &str) -> &str {
    let Some((old, new)) = MOUNT_OPTIONS.iter().find(|(old, _)| *old == name) else { return name };
    warn(old, new);
    new
}

/// Prints warnings for deprecated values in the text of a policy, such as `access=odirect`.
pub fn warn_of_policy(text: &str) {
    layout::policy::former_values(text).for_each(|(old, new)| warn(old, new));
}

/// Prints warnings for deprecated keys in the `iod.toml` at `path`, which the caller has parsed without error.
pub fn warn_of_keys(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    for key in text.lines().filter_map(|line| line.split_once('=')).map(|(key, _)| key.trim()) {
        IOD_KEYS.iter().filter(|(old, _)| *old == key).for_each(|(old, new)| warn(old, new));
    }
}

/// Parses an export from the command line, and prints warnings for deprecated names in it.
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
