//! Tests of the policy: text syntax, error messages for invalid text, and the precedence of the sources that set a
//! policy.

use layout::policy::{
    FULL, LayoutWhen, NEVER, Sharing, StoredLayout, format_size, format_time, former_values, is_policy_name, merge,
    parse_size, parse_time,
};
use layout::threshold::{ALWAYS_MGR, Rule};
use layout::{Access, DistributionId, Layers, Origin, Part, Policy, Settings};
use proptest::prelude::*;
use std::time::Duration;

/// A source of policy settings that may contain all settings except those that only the mgr's configuration or only a
/// mount may set.
const ANYWHERE: Origin = Origin::Directory;

fn set(name: &str, value: &str) -> Result<Settings, String> {
    let mut settings = Settings::default();
    let origin = if name.ends_with("read_ahead") { Origin::Mount } else { ANYWHERE };
    settings.set(origin, name.as_bytes(), value.as_bytes()).map_err(|e| e.to_string())?;
    Ok(settings)
}

#[test]
fn every_part_is_set_from_text() {
    assert_eq!(set("weir.layout", "log").unwrap().layout, Some(StoredLayout::Log));
    assert_eq!(set("layout", "stripe").unwrap().layout, Some(StoredLayout::Stripe));
    assert_eq!(set("weir.stripe_unit", "64K").unwrap().stripe_unit, Some(65536));
    assert_eq!(set("user.weir.stripe_unit", " 64 ").unwrap().stripe_unit, Some(64));
    assert_eq!(set("stripe_count", "8").unwrap().stripe_count, Some(8));
    assert_eq!(set("mirrors", "2").unwrap().mirrors, Some(2));
    assert_eq!(set("distribution", "simple_stripe").unwrap().distribution, Some(DistributionId::SimpleStripe));
    assert_eq!(set("layout_when", "first-io").unwrap().layout_when, Some(LayoutWhen::FirstIo));
    assert_eq!(set("layout_when", "4M").unwrap().layout_when, Some(LayoutWhen::Size(4 << 20)));
    assert_eq!(set("write_threshold", "256KiB").unwrap().write_threshold, Some(Rule::Fixed(256 << 10)));
    assert_eq!(set("write_threshold", "auto").unwrap().write_threshold, Some(Rule::Auto));
    assert_eq!(set("write_threshold", "max").unwrap().write_threshold, Some(Rule::Fixed(ALWAYS_MGR)));
    assert_eq!(set("read_threshold", "max").unwrap().read_threshold, Some(ALWAYS_MGR));
    assert_eq!(set("access", "unbuffered").unwrap().access, Some(Access::Unbuffered));
    assert_eq!(set("sharing", "close-to-open").unwrap().sharing, Some(Sharing::CloseToOpen));
    assert_eq!(set("gather_size", "full").unwrap().gather_size, Some(FULL));
    assert_eq!(set("gather_delay", "5ms").unwrap().gather_delay, Some(Duration::from_millis(5)));
    assert_eq!(set("gather_delay", "max").unwrap().gather_delay, Some(NEVER));
    assert_eq!(set("read_ahead", "0").unwrap().read_ahead, Some(0));
}

/// Earlier releases accepted `layout` as a name of `layout_when`. A value with this earlier meaning is invalid, and the
/// error names `layout_when`.
#[test]
fn a_value_of_layout_with_its_earlier_meaning_is_refused() {
    for value in ["auto", "open", "first-io", "4M", "0"] {
        let error = set("weir.layout", value).unwrap_err();
        assert!(error.contains("stripe or log") && error.contains("layout_when"), "{error}");
        for origin in [Origin::Mount, Origin::Environment, Origin::File, Origin::Open] {
            let error = Settings::parse(origin, &format!("layout={value}")).unwrap_err().to_string();
            assert!(error.contains("directory") && error.contains("layout_when"), "{error}");
        }
        // An older mgr or client sends the text, or the attribute of a directory from an older release exists. The
        // other settings apply, and files are striped.
        assert_eq!(Settings::of_peer(ANYWHERE, format!("layout={value},mirrors=2").as_bytes()).text(), "mirrors=2");
        let attributes: [(&[u8], &[u8]); 3] =
            [(b"weir.layout", value.as_bytes()), (b"weir.layout_when", b"first-io"), (b"weir.stripe_count", b"2")];
        let mut refused = Vec::new();
        let settings = Settings::of_xattrs(Origin::Directory, attributes, |error| refused.push(error.to_string()));
        assert_eq!(settings.text(), "stripe_count=2,layout_when=first-io");
        assert!(refused.len() == 1 && refused[0].contains("layout_when"), "{refused:?}");
        assert_eq!(Policy::default().with(&settings).layout, StoredLayout::Stripe);
    }
    assert!(former_values("layout=open,layout_when=4M").next().is_none());
}

#[test]
fn the_former_value_of_access_is_accepted_and_shown_by_its_present_text() {
    assert_eq!(set("access", "odirect").unwrap().text(), "access=unbuffered");
    assert_eq!(Settings::of_peer(Origin::File, b"access=odirect").access, Some(Access::Unbuffered));
    let found: Vec<_> = former_values("access = odirect,sharing=odirect,layout=odirect,colour=odirect").collect();
    assert_eq!(found, [("odirect", "unbuffered")]);
}

#[test]
fn error_messages_say_which_values_are_valid() {
    let message = |name, value| set(name, value).unwrap_err();
    assert_eq!(
        message("weir.stripe", "1"),
        "a policy has no part \"weir.stripe\"; its parts are layout, stripe_unit, stripe_count, mirrors, distribution, \
         layout_when, write_threshold, read_threshold, access, sharing, gather_size, gather_delay, mgr_gather_delay, \
         read_ahead"
    );
    assert_eq!(
        message("layout", "open"),
        "layout: \"open\" is not valid; write stripe or log (the setting layout_when says when a client requests the \
         layout)"
    );
    assert_eq!(
        message("weir.stripe_unit", "100"),
        "stripe_unit: \"100\" is not valid; write a multiple of 64 from 64 to 1G, such as 64K or 1M"
    );
    assert_eq!(
        message("stripe_count", "257"),
        "stripe_count: \"257\" is not valid; write a number from 0 (all iods) to 256"
    );
    assert_eq!(message("access", "yes"), "access: \"yes\" is not valid; write page, direct or unbuffered");
    assert_eq!(
        message("write_threshold", "99999999T"),
        "write_threshold: \"99999999T\" is not valid; write a size such as 64K or 1M, 0 (never through the mgr), max (always) or auto"
    );
    assert!(message("read_threshold", "auto").contains("is not valid; write a size"));
    assert!(message("read_ahead", "65M").contains("up to 64M"));
    assert_eq!(
        message("mgr_gather_delay", "5ms"),
        "mgr_gather_delay cannot be set for a directory; set mgr_gather_delay_ms in the configuration of the mgr"
    );
    let at_mount = Settings::parse(Origin::Mount, "stripe_unit=64K").unwrap_err().to_string();
    assert_eq!(
        at_mount,
        "stripe_unit cannot be set for a mount; set it for the directory: a file keeps the value from its creation"
    );
    let form = Settings::parse(Origin::Mount, "access").unwrap_err().to_string();
    assert_eq!(form, "\"access\" is not of the form NAME=VALUE: write, for example, write_threshold=32K");
}

#[test]
fn a_list_with_an_invalid_element_is_refused_unless_a_peer_sent_it() {
    let got = Settings::parse(Origin::Environment, " write_threshold=32K, access=direct,,").unwrap();
    let want =
        Settings { write_threshold: Some(Rule::Fixed(32 << 10)), access: Some(Access::Direct), ..Settings::default() };
    assert_eq!(got, want);
    assert_eq!(got.text(), "write_threshold=32K,access=direct");
    assert!(Settings::parse(Origin::Environment, "write_threshold=32K,acces=direct").is_err());
    assert!(Settings::parse(Origin::Environment, "").unwrap().is_empty());
    // A peer with a newer version sends a settings list. This version skips the elements that it cannot parse.
    let peer = b"write_threshold=32K,colour=blue,access=warp,\xff=1,access=direct,gather_size";
    assert_eq!(Settings::of_peer(Origin::Server, peer), want);
}

#[test]
fn invalid_policy_xattrs_are_reported_and_skipped() {
    let xattrs: [(&[u8], &[u8]); 5] = [
        (b"weir.stripe_unit", b"128K"),
        (b"author", b"me"),
        (b"weir.stripe_count", b"2"),
        (b"weir.later", b"?"),
        (b"weir.access", b"\xff"),
    ];
    let mut refused = Vec::new();
    let settings = Settings::of_xattrs(Origin::Directory, xattrs, |e| refused.push(e.to_string()));
    assert_eq!(settings, Settings { stripe_unit: Some(128 << 10), stripe_count: Some(2), ..Settings::default() });
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(is_policy_name(b"weir.later") && !is_policy_name(b"weirdo"));
}

/// Returns a valid value of a policy setting. If the setting has enough values, each source gets a different value.
fn text(part: Part, origin: Origin) -> String {
    let n = origin as usize;
    match part {
        Part::Layout => ["stripe", "log"][n % 2].into(),
        Part::StripeUnit => format!("{}", 64 * (n + 1)),
        Part::StripeCount => n.to_string(),
        Part::Mirrors => (1 + n % 2).to_string(),
        Part::Distribution => "simple_stripe".into(),
        Part::Sharing => ["coherent", "close-to-open"][n % 2].into(),
        Part::Access => ["page", "direct", "unbuffered"][n % 3].into(),
        Part::GatherDelay | Part::MgrGatherDelay => format!("{}ms", n + 7),
        _ => format!("{}K", n + 100),
    }
}

fn layer(layers: &mut Layers, origin: Origin) -> Option<&mut Settings> {
    match origin {
        Origin::Driver => None,
        Origin::Server => Some(&mut layers.server),
        Origin::Directory => Some(&mut layers.directory),
        Origin::Mount => Some(&mut layers.mount),
        Origin::Environment => Some(&mut layers.environment),
        Origin::File => Some(&mut layers.file),
        Origin::Open => Some(&mut layers.open),
    }
}

/// Sets one policy setting in every subset of the sources, and another setting in the remaining sources. `merge`
/// ignores a setting in a source that may not contain it. The value of a setting comes from the last source that has
/// a value and may contain the setting. All other settings keep their defaults.
#[test]
fn the_last_origin_that_sets_a_part_wins_in_all_combinations() {
    let places: Vec<Origin> = Origin::ALL.into_iter().skip(1).collect();
    let driver = Policy::default();
    let mut combinations = 0;
    for (part, other) in Part::ALL.iter().flat_map(|a| Part::ALL.iter().map(move |b| (*a, *b))) {
        for set in 0u32..1 << places.len() {
            let mut layers = Layers::default();
            let mut last: [(Origin, Option<String>); 2] = [(Origin::Driver, None), (Origin::Driver, None)];
            for (bit, origin) in places.iter().enumerate() {
                let (which, part) = if set >> bit & 1 == 1 { (0, part) } else { (1, other) };
                let value = text(part, *origin);
                let settings = layer(&mut layers, *origin).unwrap();
                match settings.set(*origin, part.name().as_bytes(), value.as_bytes()) {
                    Ok(_) => last[which] = (*origin, Some(value)),
                    Err(e) => assert!(!part.is_set_by(*origin), "{e}"),
                }
            }
            let effective = merge(&driver, &layers);
            for (seen, value, origin) in effective.rows() {
                let mut wanted = (Origin::Driver, driver.get(seen));
                for (which, set) in [(0, part), (1, other)] {
                    if set == seen
                        && last[which].0 >= wanted.0
                        && let Some(text) = &last[which].1
                    {
                        wanted = (last[which].0, text.clone());
                    }
                }
                assert_eq!((origin, &value), (wanted.0, &wanted.1), "{} by {set:b}", seen.name());
            }
            combinations += 1;
        }
    }
    assert_eq!(combinations, Part::ALL.len() * Part::ALL.len() * 64);
}

/// `merge` ignores a policy setting in a source that may not contain it.
#[test]
fn parts_that_an_origin_may_not_set_are_ignored() {
    let mut layers = Layers::default();
    for origin in Origin::ALL {
        if let Some(settings) = layer(&mut layers, origin) {
            let layout = Some(StoredLayout::Log);
            *settings =
                Settings { layout, stripe_unit: Some(128), mgr_gather_delay: Some(NEVER), ..Settings::default() };
        }
    }
    let effective = merge(&Policy::default(), &layers);
    assert_eq!(effective.origin(Part::Layout), Origin::Directory);
    assert_eq!(effective.origin(Part::StripeUnit), Origin::Directory);
    assert_eq!(effective.origin(Part::MgrGatherDelay), Origin::Server);
}

#[test]
fn invalid_sizes_and_times_are_refused() {
    for text in ["", "K", "-1", "1X", "1KK", "1iB", "1.5M", "16777216T", "99999999999999999999", "1é"] {
        assert_eq!(parse_size(text), None, "{text:?}");
    }
    for text in ["", "5", "ms", "-1ms", "1.5s", "5m", "90000s", "99999999999999999999s", "5 ms", "5é"] {
        assert_eq!(parse_time(text), None, "{text:?}");
    }
}

proptest! {
    #[test]
    fn sizes_round_trip(n in any::<u64>(), shift in 0u32..64) {
        prop_assert_eq!(parse_size(&format_size(n << shift)), Some(n << shift));
    }

    #[test]
    fn times_round_trip(micros in 0u64..=86_400_000_000) {
        let time = Duration::from_micros(micros);
        prop_assert_eq!(parse_time(&format_time(time)), Some(time));
    }

    #[test]
    fn settings_round_trip_through_their_text(chosen in prop::collection::vec((0..Part::ALL.len(), 0usize..7), 0..12)) {
        let mut settings = Settings::default();
        for (part, n) in chosen {
            let (part, origin) = (Part::ALL[part], Origin::ALL[n]);
            settings.set(Origin::Server, part.xattr().as_bytes(), text(part, origin).as_bytes()).unwrap();
        }
        prop_assert_eq!(Settings::parse(Origin::Server, &settings.text()).unwrap(), settings);
        prop_assert_eq!(Settings::of_peer(Origin::Server, settings.text().as_bytes()), settings);
        let policy = Policy::default().with(&settings);
        for part in Part::ALL {
            prop_assert_eq!(policy.get(*part), settings.get(*part).unwrap_or(Policy::default().get(*part)));
        }
    }

    #[test]
    fn any_bytes_are_a_setting_or_an_error(part in 0..Part::ALL.len(), value in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut settings = Settings::default();
        if settings.set(Origin::Server, Part::ALL[part].name().as_bytes(), &value).is_err() {
            prop_assert_eq!(settings, Settings::default());
        }
    }

    #[test]
    fn no_text_of_a_peer_causes_a_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
        Settings::of_peer(Origin::Server, &text);
    }
}
