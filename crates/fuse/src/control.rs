//! The door by which a mount is asked for its policy, and told another one while it is used: extended attributes that no file has.
//!
//! `user.weir.effective` of any file or directory is the policy that counts for who opens it now: a line for each part, with its
//! value and where that comes from. `user.weir.mount.` and the name of a part is what the options of the mount say; it is set
//! and removed like any other, on whatever file of the mount, by root and by who mounted it. `user.weir.known` is how many files the
//! kernel knows.

use crate::Errno;
use crate::fs::FileSystem;
use crate::request::Header;
use client::Part;
use std::fmt::Write;
use types::FileKind;

const EPERM: Errno = Errno(1);
const EINVAL: Errno = Errno(22);
const ENODATA: Errno = Errno(61);

/// Without `user.`, the attribute that shows what counts.
pub(crate) const EFFECTIVE: &[u8] = b"weir.effective";
/// Without `user.`, the attribute that shows how many files the kernel knows.
const KNOWN: &[u8] = b"weir.known";
/// Without `user.`, what the names of the mount's options begin with.
const MOUNT: &[u8] = b"weir.mount.";

/// What an extended attribute of the mount itself is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Control<'a> {
    /// What counts for a file.
    Effective,
    /// How many files the kernel knows.
    Known,
    /// The part of this name, as an option of the mount.
    Option(&'a [u8]),
}

impl<'a> Control<'a> {
    /// Of an attribute of this name, without `user.`; `None` for those of files.
    pub(crate) fn of(name: &'a [u8]) -> Option<Self> {
        match name.strip_prefix(MOUNT) {
            Some(part) => Some(Control::Option(part)),
            None if name == KNOWN => Some(Control::Known),
            None => (name == EFFECTIVE).then_some(Control::Effective),
        }
    }
}

impl FileSystem {
    /// The value of an attribute of the mount.
    pub(crate) async fn control(&self, header: &Header, control: Control<'_>) -> Result<Vec<u8>, Errno> {
        match control {
            Control::Effective => {
                let (node, dir) = (self.node(header)?, self.nodes.dir_of(header.node));
                let (kind, effective) = self.acting(header).policy_of(&node, dir.as_ref()).await?;
                let mut text = String::new();
                // How a file lies was decided when it was made.
                let file = kind == FileKind::Regular;
                for (part, value, origin) in effective.rows().filter(|(part, ..)| !(file && part.is_placement())) {
                    // Writing to a string cannot fail.
                    let _ = writeln!(text, "{} {value} {}", part.name(), origin.name());
                }
                Ok(text.into_bytes())
            }
            Control::Known => Ok(self.nodes.count().to_string().into_bytes()),
            Control::Option(name) => {
                let part = Part::named(name).map_err(|_| ENODATA)?;
                let value = self.callers.anybody().settings().get(part);
                value.map(String::into_bytes).ok_or(ENODATA)
            }
        }
    }

    /// Sets an attribute of the mount, or takes it away.
    pub(crate) fn set_control(&self, header: &Header, control: Control<'_>, value: Option<&[u8]>) -> Result<(), Errno> {
        let Control::Option(name) = control else { return Err(EPERM) };
        if header.uid != 0 && header.uid != rustix::process::geteuid().as_raw() {
            return Err(EPERM);
        }
        let mount = self.callers.anybody();
        if value.is_none() && Part::named(name).is_ok_and(|part| !mount.settings().has(part)) {
            return Err(ENODATA);
        }
        mount.set_policy(name, value).map_err(|error| {
            tracing::warn!("a policy of the mount was refused: {error}");
            EINVAL
        })?;
        let shown = |bytes| String::from_utf8_lossy(bytes).into_owned();
        tracing::info!(part = shown(name), value = value.map(shown), "the policy of the mount was changed");
        self.read_ahead.apply(&mount.policy().policy);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_mount_are_told_from_those_of_files() {
        assert_eq!(Control::of(b"weir.effective"), Some(Control::Effective));
        assert_eq!(Control::of(b"weir.mount.access"), Some(Control::Option(b"access")));
        assert_eq!(Control::of(b"weir.known"), Some(Control::Known));
        assert_eq!(Control::of(b"weir.access"), None);
        assert_eq!(Control::of(b"weir.effectively"), None);
    }
}
