//! Deprecated names: accepted for one release, each with one warning line on standard error.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

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

/// Warns of deprecated names in the text of a policy, such as `layout=open`.
pub fn warn_of_policy(text: &str) {
    layout::policy::former_names(text).for_each(|(old, part)| warn(old, part.name()));
}
