//! The effective policy of open files: merges the policy settings of the server, directory, mount, environment, open
//! and file, and merges them again after each change.

use layout::policy::{Effective, Layers, LayoutWhen, Policy, Settings, merge};
use layout::threshold::Rule;
use nfs::fs::PolicyText;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::FileId;

/// Maximum number of directories whose policy settings the mount caches.
const DIRECTORIES_MAX: usize = 1024;

/// The policy settings that apply to all files of a mount, and the cached settings of directories.
#[derive(Debug)]
pub(crate) struct EffectivePolicy {
    /// The default policy: the value of each policy setting that is set nowhere else.
    driver: Policy,
    environment: Settings,
    /// The policy settings from the mount options.
    mount: Mutex<Settings>,
    /// The server's policy settings, as the mgr last reported them. They apply to new files in directories whose policy
    /// settings the client does not know.
    server: Mutex<Settings>,
    /// The last reported policy settings of the server and of each directory. The client uses them only to predict the
    /// policy of a new file, because every OPEN returns the current settings.
    directories: Mutex<HashMap<FileId, (Settings, Settings)>>,
    /// A counter that increases with every change of policy settings that may apply to open files.
    generation: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The policy settings that belong to one open of a file, as they were when the open began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OpenSettings {
    pub(crate) server: Settings,
    pub(crate) directory: Settings,
    /// The policy settings that the caller passed to open.
    pub(crate) open: Settings,
}

/// The policy settings that apply to one open of a file, and the effective policy of the open.
#[derive(Debug, Default)]
pub(crate) struct OpenPolicy {
    settings: OpenSettings,
    /// The effective policy, and the value of `EffectivePolicy::generation` for which it was computed; 0 before the
    /// first computation.
    now: Mutex<(u64, Policy)>,
}

/// Parses the policy settings that the mgr reports: those of the server, and those of a directory or file.
pub(crate) fn parse_settings(told: &PolicyText, origin: layout::Origin) -> (Settings, Settings) {
    (Settings::of_peer(layout::Origin::Server, &told.server), Settings::of_peer(origin, &told.own))
}

impl EffectivePolicy {
    /// Creates the policy settings of a mount with these mount options.
    pub(crate) fn new(driver: Policy, mount: Settings, environment: Settings) -> Self {
        EffectivePolicy {
            driver,
            environment,
            mount: Mutex::new(mount),
            server: Mutex::default(),
            directories: Mutex::default(),
            generation: AtomicU64::new(1),
        }
    }

    /// Records that the policy settings of open files may have changed, so that each open computes its effective policy
    /// again.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Relaxed);
    }

    /// Returns the policy settings from the mount options.
    pub(crate) fn mount(&self) -> Settings {
        *lock(&self.mount)
    }

    /// Changes the policy settings from the mount options.
    pub(crate) fn set_mount(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut lock(&self.mount));
        self.changed();
    }

    /// Returns the server's policy settings; empty before the mgr has reported them.
    pub(crate) fn server(&self) -> Settings {
        *lock(&self.server)
    }

    /// Records the policy settings that the server has for all files.
    pub(crate) fn record_server_settings(&self, settings: Settings) {
        *lock(&self.server) = settings;
    }

    /// Records the policy settings of the server and of a directory.
    pub(crate) fn record_directory_settings(&self, dir: FileId, settings: (Settings, Settings)) {
        let mut directories = lock(&self.directories);
        if directories.len() >= DIRECTORIES_MAX && !directories.contains_key(&dir) {
            directories.clear();
        }
        directories.insert(dir, settings);
    }

    /// Predicts the policy settings of a new file in directory `dir`, before the mgr has reported them.
    pub(crate) fn guess(&self, dir: Option<FileId>, open: Settings) -> OpenSettings {
        let known = dir.and_then(|dir| lock(&self.directories).get(&dir).copied());
        let (server, directory) = known.unwrap_or_else(|| (self.server(), Settings::default()));
        OpenSettings { server, directory, open }
    }

    /// Merges the policy settings of an open, of the file and of the mount into the effective policy.
    pub(crate) fn effective(&self, settings: &OpenSettings, file: Settings) -> Effective {
        let layers = Layers {
            server: settings.server,
            directory: settings.directory,
            mount: self.mount(),
            environment: self.environment,
            file,
            open: settings.open,
        };
        merge(&self.driver, &layers)
    }
}

impl OpenPolicy {
    /// Creates the policy state of an open with these policy settings. The effective policy is computed at its first
    /// use.
    pub(crate) fn new(settings: OpenSettings) -> Self {
        OpenPolicy { settings, ..OpenPolicy::default() }
    }

    /// Returns the current effective policy. If any policy setting may have changed, calls `file` for the settings of
    /// the file itself, and computes the policy again.
    pub(crate) fn policy(&self, effective_policy: &EffectivePolicy, file: impl FnOnce() -> Settings) -> Policy {
        let generation = effective_policy.generation.load(Relaxed);
        let mut now = lock(&self.now);
        if now.0 != generation {
            *now = (generation, effective_policy.effective(&self.settings, file()).policy);
        }
        now.1
    }

    /// Computes the current effective policy, and the origin of each policy setting: server, directory, mount and so
    /// on.
    pub(crate) fn effective(&self, effective_policy: &EffectivePolicy, file: Settings) -> Effective {
        effective_policy.effective(&self.settings, file)
    }
}

/// Returns whether the client requests a layout together with OPEN. Otherwise it requests the layout before the first
/// I/O on the direct path.
pub(crate) fn layout_at_open(policy: &Policy) -> bool {
    match policy.layout_when {
        LayoutWhen::Open => true,
        LayoutWhen::FirstIo | LayoutWhen::Size(_) => false,
        LayoutWhen::Auto => policy.write_threshold == Rule::Fixed(0) && policy.read_threshold == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::{Access, Origin, Part};

    #[test]
    fn a_changed_mount_option_applies_at_once() {
        let mount = Settings { access: Some(Access::Page), ..Settings::default() };
        let effective_policy = EffectivePolicy::new(Policy::default(), mount, Settings::default());
        let open_policy = OpenPolicy::new(OpenSettings::default());
        let now = || open_policy.policy(&effective_policy, Settings::default);
        assert_eq!((now().access, now().write_threshold), (Access::Page, Rule::Fixed(0)));
        effective_policy.set_mount(|mount| {
            mount.unset(Part::Access);
            mount.write_threshold = Some(Rule::Auto);
        });
        assert_eq!((now().access, now().write_threshold), (Access::Direct, Rule::Auto));
        // An open computes its effective policy again only after policy settings were marked as changed. Until then,
        // the open ignores new settings of the file.
        let own = Settings { access: Some(Access::Unbuffered), ..Settings::default() };
        assert_eq!(open_policy.policy(&effective_policy, || own).access, Access::Direct);
        effective_policy.changed();
        assert_eq!(open_policy.policy(&effective_policy, || own).access, Access::Unbuffered);
        assert_eq!(open_policy.effective(&effective_policy, own).origin(Part::Access), Origin::File);
    }

    #[test]
    fn the_number_of_cached_directory_settings_is_bounded() {
        let effective_policy = EffectivePolicy::new(Policy::default(), Settings::default(), Settings::default());
        let settings = Settings { read_threshold: Some(7), ..Settings::default() };
        for dir in 0..3 * DIRECTORIES_MAX as u64 {
            effective_policy.record_directory_settings(FileId(dir), (Settings::default(), settings));
            assert_eq!(effective_policy.guess(Some(FileId(dir)), Settings::default()).directory, settings);
        }
        assert!(lock(&effective_policy.directories).len() <= DIRECTORIES_MAX);
        effective_policy.record_server_settings(settings);
        assert_eq!(effective_policy.guess(None, Settings::default()).server, settings);
    }

    #[test]
    fn the_policy_decides_whether_open_requests_a_layout() {
        let policy = |text: &str| Policy::default().with(&Settings::parse(Origin::Mount, text).unwrap());
        for (text, at_open) in [
            ("", true),
            ("write_threshold=1", false),
            ("read_threshold=1", false),
            ("write_threshold=auto", false),
            ("write_threshold=max,layout_when=open", true),
            ("layout_when=first-io", false),
            ("layout_when=1M", false),
        ] {
            assert_eq!(layout_at_open(&policy(text)), at_open, "{text}");
        }
    }
}
