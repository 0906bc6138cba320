//! The policy that clients receive: the settings of the server, of directories and of files.

use super::Volume;
use bytes::Bytes;
use layout::threshold::Rule as ThresholdRule;
use layout::{Origin, Settings};
use nfs::fs::{Ctx, PolicyText};
use types::{FileId, FileKind, Status};

impl Volume {
    /// Returns the policy settings of a directory or file, from its extended attributes.
    fn own_settings(&self, file: FileId) -> Result<Settings, Status> {
        let xattrs = self.namespace.effective_xattrs(file, layout::policy::PREFIX.as_bytes())?;
        if xattrs.is_empty() {
            return Ok(Settings::default());
        }
        let origin = self.origin(file)?;
        let xattrs = xattrs.iter().map(|(name, value)| (&name[..], &value[..]));
        // The mgr has already reported an invalid attribute when a user set it, so log it only at the debug level here.
        Ok(Settings::of_xattrs(origin, xattrs, |e| {
            tracing::debug!(file = file.0, "ignored an invalid policy attribute: {e}")
        }))
    }

    /// Returns where the policy settings of this inode come from: a directory or a file.
    fn origin(&self, file: FileId) -> Result<Origin, Status> {
        let directory = self.namespace.getattr(file)?.kind == FileKind::Directory;
        Ok(if directory { Origin::Directory } else { Origin::File })
    }

    /// Checks whether a user may set a policy attribute to this value.
    pub(crate) fn check_policy(&self, file: FileId, name: &[u8], value: &[u8]) -> Result<(), Status> {
        let origin = self.origin(file)?;
        match Settings::default().set(origin, name, value) {
            Ok(part) => {
                if let Some((old, new)) =
                    std::str::from_utf8(value).ok().and_then(|old| Some((old, part.present_value(old)?)))
                {
                    tracing::warn!(file = file.0, old, new, "deprecated value of a policy attribute");
                }
                Ok(())
            }
            Err(e) => {
                tracing::info!(file = file.0, "refused a policy attribute: {e}");
                Err(Status::Inval)
            }
        }
    }

    /// Returns the policy as text for the private attribute that Weir's own client reads.
    pub(crate) fn policy_text(&self, ctx: &Ctx, file: FileId) -> Result<PolicyText, Status> {
        let own = if ctx.place.is_outside() { Settings::default() } else { self.own_settings(file)? };
        let server = self.exports.rule(ctx.place).client_settings;
        Ok(PolicyText { server: Bytes::from(server.text()), own: Bytes::from(own.text()) })
    }

    /// Returns the read and write thresholds that the policy sets for a file, in bytes, for kernel clients. `dir` is
    /// the directory in which the client opens the file, if known. The setting `auto` results in `None`, because
    /// kernels do not support it.
    pub(super) fn thresholds_of(
        &self,
        ctx: &Ctx,
        file: FileId,
        dir: Option<FileId>,
    ) -> Result<(Option<u64>, Option<u64>), Status> {
        let mut settings = self.exports.rule(ctx.place).client_settings;
        if let Some(dir) = dir {
            settings.lay(&self.own_settings(dir)?);
        }
        settings.lay(&self.own_settings(file)?);
        let write = match settings.write_threshold {
            Some(ThresholdRule::Fixed(t)) => Some(t),
            Some(ThresholdRule::Auto) | None => None,
        };
        Ok((settings.read_threshold, write))
    }
}
