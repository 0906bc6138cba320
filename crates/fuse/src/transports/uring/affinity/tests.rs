//! Tests of wake affinity: ring threads that yield, in a simulated world that reports how much processor time they get.

use super::*;

/// Requests that are executed between two looks.
#[derive(Clone, Copy, Debug)]
struct World {
    /// With the normal policy, and while threads yield.
    done: [u64; 2],
    /// Whether a yielding thread gets no processor.
    starves: bool,
}

fn look(judge: &mut Judge, world: World) -> bool {
    let done = world.done[usize::from(judge.give_way)];
    judge.look(LOOK, done, world.starves && judge.give_way);
    judge.give_way
}

/// Returns after how many of `count` looks the threads yield.
fn looks(judge: &mut Judge, count: usize, world: World) -> usize {
    (0..count).filter(|_| look(judge, world)).count()
}

const ALONE: World = World { done: [100, 200], starves: false };
const CROWDED: World = World { done: [100, 0], starves: true };
const QUIET: World = World { done: [1, 1], starves: false };
const SECOND: usize = 200;

#[test]
fn who_is_asked_much_gives_way_and_goes_on_so() {
    let mut judge = Judge::new();
    assert_eq!(looks(&mut judge, 1000, ALONE), 1000);
    // Down to the lowest rate at which yielding is useful.
    assert_eq!(looks(&mut judge, 1000, World { done: [19, 5], starves: false }), 1000);
    assert!(!look(&mut judge, World { done: [19, 4], starves: false }));
}

#[test]
fn who_is_asked_little_does_not() {
    let mut judge = Judge::new();
    assert_eq!(looks(&mut judge, 1000, World { done: [19, 19], starves: false }), 0);
    assert!(judge.is_at_rest());
    // The threads stop yielding at once when the rate drops, and start as soon as it rises: no thread was starved.
    assert!(look(&mut judge, ALONE) && !judge.is_at_rest());
    assert!(!look(&mut judge, QUIET) && judge.is_at_rest());
    assert!(look(&mut judge, ALONE));
}

#[test]
fn who_gets_no_processor_tries_ever_less_often() {
    let mut judge = Judge::new();
    // Ten minutes: each try lasts for one look.
    let tries = looks(&mut judge, 600 * SECOND, CROWDED);
    assert!((60..80).contains(&tries), "{tries}");
    assert!(looks(&mut judge, 10 * SECOND, CROWDED) <= 2);
    // As soon as a processor is free, the threads yield, and after a second the pause is reset.
    assert!(looks(&mut judge, 11 * SECOND, ALONE) > 0);
    assert_eq!(looks(&mut judge, 2 * SECOND, ALONE), 2 * SECOND);
    assert_eq!(judge.next_pause, PAUSE);
    // Time at rest counts as well.
    assert!(look(&mut judge, CROWDED) == judge.give_way && !judge.pause.is_zero());
    judge.rested(PAUSE);
    assert!(look(&mut judge, ALONE));
}

#[test]
fn one_that_starves_counts_for_all() {
    // The other threads continue as before meanwhile.
    let mut judge = Judge::new();
    let tries = looks(&mut judge, 60 * SECOND, World { done: [100, 200], starves: true });
    assert!((8..20).contains(&tries), "{tries}");
}

#[test]
fn after_every_history_it_gives_way_where_much_is_asked_and_nobody_starves() {
    // Every history of six looks: the requests done in each, and whether a yielding thread starves.
    let kinds = [0, 4, 5, 19, 20].map(|done| [false, true].map(|starves| World { done: [done, done], starves }));
    let kinds: Vec<World> = kinds.into_iter().flatten().collect();
    let count = kinds.len() as u64;
    for history in 0..count.pow(6) {
        let (mut judge, mut rest, mut gives_way) = (Judge::new(), history, false);
        for at in 0..6 {
            let world = kinds[(rest % count) as usize];
            rest /= count;
            let enough = world.done[0] >= if gives_way { 5 } else { 20 };
            let starved = gives_way && world.starves;
            gives_way = look(&mut judge, world);
            assert_eq!(gives_way, enough && !starved && judge.pause.is_zero(), "{history} at {at}");
            assert!(!starved || !judge.pause.is_zero(), "{history} at {at}");
            assert!(judge.next_pause <= PAUSE_MAX, "{history} at {at}");
        }
    }
}

#[test]
fn tries_that_end_for_want_of_requests_prove_as_much() {
    // A writer that waits for servers every 0.8 s.
    let mut judge = Judge::new();
    assert!(look(&mut judge, ALONE) && !look(&mut judge, CROWDED));
    assert_eq!(judge.next_pause, 2 * PAUSE);
    judge.rested(PAUSE);
    for _ in 0..2 {
        assert_eq!(looks(&mut judge, 160, ALONE), 160);
        assert!(!look(&mut judge, QUIET));
    }
    assert_eq!(judge.next_pause, PAUSE);
}

#[test]
fn who_is_kept_from_running_is_told_from_who_has_nothing_to_do() {
    let starved = |gives_way: bool, requests: u64, runnable: bool, then_waited: Duration| {
        let mut standing = Standing { gives_way, most: MANY, suspect: None };
        let before = Duration::from_secs(7);
        assert!(!standing.was_starved(LOOK, requests, || runnable, || Some(before)), "not known yet");
        standing.gives_way = false;
        // The next look may come late.
        let known = standing.was_starved(3 * LOOK, 0, || false, || Some(before + then_waited));
        assert!(!standing.was_starved(LOOK, 0, || true, || Some(before + 9 * LOOK)), "told once");
        known
    };
    // Always behind other tasks, or with a request now and then, while other threads of the mount continue.
    assert!(starved(true, 0, true, LOOK) && starved(true, 9, true, LOOK / 2));
    // Also starved if it was about to sleep at the look.
    assert!(starved(true, 0, false, LOOK));
    // It slept, was about to run, or got its work done; a thread that did not yield had its share.
    assert!(!starved(true, 0, false, Duration::ZERO) && !starved(true, 0, true, LOOK / 3));
    assert!(!starved(true, 10, true, LOOK) && !starved(false, 0, true, LOOK));
    let mut unknown = Standing { gives_way: true, ..Standing::default() };
    assert!(!unknown.was_starved(LOOK, 0, || true, || None) && !unknown.was_starved(LOOK, 0, || true, || None));
    // It still has no processor at the next look.
    let mut late = Standing { gives_way: true, ..Standing::default() };
    let waits = |waited: Duration| move || Some(waited);
    assert!(!late.was_starved(LOOK, 0, || true, waits(LOOK)));
    late.gives_way = false;
    assert!(!late.was_starved(LOOK, 0, || true, waits(LOOK)));
    assert!(late.was_starved(LOOK, 0, || true, waits(3 * LOOK)));
}

#[test]
fn a_pause_of_who_asks_is_not_held_against_it() {
    let mut judge = Judge::new();
    for _ in 0..100 {
        assert!(look(&mut judge, ALONE));
        assert!(!look(&mut judge, QUIET));
    }
    assert!(judge.pause.is_zero() && judge.next_pause == PAUSE);
}

#[test]
fn a_real_thread_gives_way_while_it_is_asked_and_is_forgotten_when_it_ends() {
    let Ok(watch) = Watch::new() else {
        return eprintln!("NOT TESTED: who gives way here may not come back");
    };
    let (tell, told) = mpsc::channel();
    let (quiet, end) = [(), ()].map(|()| AtomicBool::new(false)).into();
    let (watch, quiet, end) = (&watch, &quiet, &end);
    thread::scope(|scope| {
        let asked = scope.spawn(move || {
            let member = watch.join().unwrap();
            tell.send(member.0.thread).unwrap();
            while !quiet.load(SeqCst) {
                member.beat();
            }
            while !end.load(SeqCst) {
                thread::park();
            }
        });
        let thread = told.recv().unwrap();
        let has = |wanted: i32| {
            while policy(thread).unwrap() != wanted {
                thread::yield_now();
            }
        };
        has(libc::SCHED_IDLE);
        quiet.store(true, SeqCst);
        has(libc::SCHED_OTHER);
        end.store(true, SeqCst);
        asked.thread().unpark();
        asked.join().unwrap();
        assert!(watch.shared.threads().is_empty());
    });
}

#[test]
fn who_is_started_by_one_that_gives_way_does_not() {
    if may_come_back().is_err() {
        return eprintln!("NOT TESTED: who gives way here may not come back");
    }
    let policy_of_new = |begins: fn()| {
        let own = move || {
            begins();
            policy(0).unwrap()
        };
        thread::spawn(own).join().unwrap()
    };
    let both = thread::spawn(move || {
        set_policy(0, true).unwrap();
        EVER.store(true, Relaxed);
        [policy_of_new(|| {}), policy_of_new(thread_begins)]
    });
    assert_eq!(both.join().unwrap(), [libc::SCHED_IDLE, libc::SCHED_OTHER]);
}
