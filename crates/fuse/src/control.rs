//! Control attributes: virtual extended attributes through which programs read and change the policy of a mount in use.
//!
//! `user.weir.effective` of any file or directory is the policy that applies if the caller opens the file now. The
//! value has one line for each setting, with the value and its source. `user.weir.mount.` plus the name of a setting is
//! the value from the mount options. Root and the user who mounted the file system can set and remove this attribute,
//! on any file of the mount. `user.weir.known` is the number of inodes that the kernel has of the mount.

use crate::Errno;
use crate::fs::FileSystem;
use crate::request::Header;
use client::Part;
use std::fmt::Write;
use types::FileKind;

const EPERM: Errno = Errno(1);
const EINVAL: Errno = Errno(22);
const ENODATA: Errno = Errno(61);

/// The name, without `user.`, of the extended attribute whose value is the effective policy of a file.
pub(crate) const EFFECTIVE: &[u8] = b"weir.effective";
/// The name, without `user.`, of the extended attribute whose value is the number of inodes that the kernel has.
const KNOWN: &[u8] = b"weir.known";
/// The first part, without `user.`, of the names of extended attributes for mount options. The name of the option
/// follows.
const MOUNT: &[u8] = b"weir.mount.";

/// A control attribute of the mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Control<'a> {
    /// The effective policy of a file.
    Effective,
    /// The number of inodes that the kernel has of the mount.
    Known,
    /// The value of a setting in the mount options; the field is the name of the setting.
    Option(&'a [u8]),
}

impl<'a> Control<'a> {
    /// Returns the control attribute with this name (without `user.`), or `None` for an ordinary extended attribute.
    pub(crate) fn of(name: &'a [u8]) -> Option<Self> {
        match name.strip_prefix(MOUNT) {
            Some(part) => Some(Control::Option(part)),
            None if name == KNOWN => Some(Control::Known),
            None => (name == EFFECTIVE).then_some(Control::Effective),
        }
    }
}

impl FileSystem {
    /// Returns the value of a control attribute.
    pub(crate) async fn control(&self, header: &Header, control: Control<'_>) -> Result<Vec<u8>, Errno> {
        match control {
            Control::Effective => {
                let (node, dir) = (self.node(header)?, self.nodes.dir_of(header.node));
                let (kind, effective) = self.acting(header).policy_of(&node, dir.as_ref()).await?;
                let mut text = String::new();
                // A regular file got its layout at its creation, so the current layout settings do not apply to the
                // file.
                let file = kind == FileKind::Regular;
                for (part, value, origin) in effective.rows().filter(|(part, ..)| !(file && part.is_placement())) {
                    // Writing to a `String` cannot fail, so ignore the result.
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

    /// Sets a control attribute, or removes it if `value` is `None`.
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
            tracing::warn!("refused a policy setting of the mount: {error}");
            EINVAL
        })?;
        let shown = |bytes| String::from_utf8_lossy(bytes).into_owned();
        tracing::info!(part = shown(name), value = value.map(shown), "changed the policy of the mount");
        self.read_ahead.apply(&mount.policy().policy);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_the_mount_are_distinguished_from_those_of_files() {
        assert_eq!(Control::of(b"weir.effective"), Some(Control::Effective));
        assert_eq!(Control::of(b"weir.mount.access"), Some(Control::Option(b"access")));
        assert_eq!(Control::of(b"weir.known"), Some(Control::Known));
        assert_eq!(Control::of(b"weir.access"), None);
        assert_eq!(Control::of(b"weir.effectively"), None);
    }
}
