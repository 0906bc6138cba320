//! The fault injector of a simulated run, which begins and ends each fault of the plan at its time.
//!
//! At the end of the fault phase, the injector ends all faults.

use crate::cluster::{Cluster, IOD_DISK, MGR_DISK};
use crate::hosts::{CLIENT, Death, DiskFaults, IOD, MGR, name};
use crate::network::{Host, SILENCE};
use crate::old_images::OldImages;
use crate::plan::{Fault, Move, Plan};
use crate::trace;
use crate::workload::World;
use net::task::Group;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

/// An action of the fault injector, which it executes at a certain time or after a certain event.
#[derive(Clone, Debug)]
enum Action {
    Begin(Fault),
    Move(Move),
    StartMgr,
    StartIod(usize),
    MgrDies { power: bool, down_ms: u64 },
    MgrEnded,
    IodDies { iod: usize, power: bool, down_ms: u64 },
    Flakes { host: Host, pieces: u64, times: u64 },
    Heal(Host, Host),
    GiveUp(Host, Host),
    StormOver,
    IodWell(usize),
    MgrWell,
    IodPutBack(usize),
    MgrPutBack,
    Quiet,
}

/// The fault injector of a simulated run.
pub struct Faults<'a> {
    plan: &'a Plan,
    world: &'a World,
    cluster: &'a RefCell<Cluster>,
    clients: &'a [Group],
    agenda: BTreeMap<(Duration, u64), Action>,
    entries: u64,
    tell: UnboundedSender<Action>,
    told: UnboundedReceiver<Action>,
    quiet: bool,
    old_images: OldImages,
}

impl<'a> Faults<'a> {
    /// Returns the fault injector for a plan. No fault has begun yet.
    pub fn new(plan: &'a Plan, world: &'a World, cluster: &'a RefCell<Cluster>, clients: &'a [Group]) -> Self {
        let (tell, told) = unbounded_channel();
        let (agenda, entries, quiet) = (BTreeMap::new(), 0, false);
        let mut faults = Faults {
            plan,
            world,
            cluster,
            clients,
            agenda,
            entries,
            tell,
            told,
            quiet,
            old_images: OldImages::default(),
        };
        for (at, fault) in &plan.faults {
            faults.after(*at, Action::Begin(fault.clone()));
        }
        for (at, one) in &plan.moves {
            faults.after(*at, Action::Move(one.clone()));
        }
        faults.after(plan.quiet_ms, Action::Quiet);
        faults.watch_mgr();
        faults
    }

    fn after(&mut self, ms: u64, action: Action) {
        self.entries += 1;
        self.agenda.insert((trace::elapsed() + Duration::from_millis(ms), self.entries), action);
    }

    fn watch_mgr(&self) {
        let (ended, tell) = (self.cluster.borrow().mgr.ended(), self.tell.clone());
        tokio::spawn(async move {
            loop {
                ended.notified().await;
                if tell.send(Action::MgrEnded).is_err() {
                    return;
                }
            }
        });
    }

    fn when(&self, told: std::sync::Arc<tokio::sync::Notify>, action: Action) {
        let tell = self.tell.clone();
        tokio::spawn(async move {
            told.notified().await;
            // Ignore the error of the send: after the end of the run, the receiver of the actions no longer exists.
            let _ = tell.send(action);
        });
    }

    /// Executes the actions of the plan, each at its planned time. Never returns.
    pub async fn run(&mut self) {
        let start = Instant::now() - trace::elapsed();
        loop {
            let next = self.agenda.first_key_value().map(|((at, _), _)| start + *at);
            let sleep = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let action = tokio::select! {
                biased;
                action = self.told.recv() => action,
                () = sleep => self.agenda.pop_first().map(|(_, action)| action),
            };
            if let Some(action) = action {
                self.act(action);
            }
        }
    }

    fn act(&mut self, action: Action) {
        let cluster = self.cluster;
        match action {
            Action::Begin(fault) if !self.quiet => {
                trace::say(format!("FAULT {fault:?}"));
                self.begin(fault);
            }
            Action::Begin(_) => {}
            Action::Move(one) => {
                let file = self.world.files[one.file as usize].id;
                trace::say(format!("MOVE file {} {:?}", file.0, one.iods));
                cluster.borrow().mgr.swap_layout(file, one.iods);
            }
            Action::StartMgr => cluster.borrow_mut().start_mgr(),
            Action::StartIod(iod) => self.start_iod(iod),
            Action::MgrDies { .. } | Action::IodDies { .. } if self.quiet => {}
            Action::MgrDies { power, down_ms } => {
                self.mgr_dies(death(power));
                self.after(down_ms, Action::StartMgr);
            }
            Action::Flakes { .. } if self.quiet => {}
            Action::Flakes { host, pieces, times } => {
                cluster.borrow().net.reset_one(host);
                self.begin(Fault::Flaky { host, pieces, times: times - 1 });
            }
            Action::MgrEnded => {
                self.mgr_dies(Death::Killed);
                if self.quiet {
                    self.world.history().model.fail("the mgr ended although nothing was wrong any more".into());
                } else {
                    self.after(500, Action::StartMgr);
                }
            }
            Action::IodDies { iod, power, down_ms } => {
                cluster.borrow_mut().iods[iod].die(death(power));
                self.after(down_ms, Action::StartIod(iod));
            }
            Action::Heal(a, b) => cluster.borrow().net.heal(a, b),
            Action::GiveUp(a, b) => cluster.borrow().net.give_up(a, b),
            Action::StormOver => cluster.borrow().net.set_conditions(self.plan.conditions),
            Action::IodWell(iod) => self.iod_well(iod),
            Action::MgrWell => self.mgr_well(),
            Action::IodPutBack(iod) => self.put_back_iod(iod),
            Action::MgrPutBack => self.put_back_mgr(),
            Action::Quiet => self.calm_down(),
        }
    }

    fn start_iod(&mut self, iod: usize) {
        let started = self.cluster.borrow_mut().start_iod(iod);
        if let Err(error) = started {
            trace::say(format!("{} cannot start: {error}", name(IOD + iod as u64)));
            if self.quiet {
                self.world.history().model.fail(format!("iod{iod} cannot start: {error}"));
            } else {
                self.after(500, Action::StartIod(iod));
            }
        }
    }

    fn begin(&mut self, fault: Fault) {
        let cluster = self.cluster;
        match fault {
            Fault::Mgr { power, down_ms } => self.act(Action::MgrDies { power, down_ms }),
            Fault::MgrAfter { pieces, down_ms } => {
                let told = cluster.borrow().net.after_pieces(MGR, pieces);
                self.when(told, Action::MgrDies { power: false, down_ms });
            }
            Fault::MgrDisk { changes, down_ms } => {
                cluster.borrow().mgr.disk().die_after(changes);
                self.after(2 + changes * 5, Action::MgrDies { power: true, down_ms });
            }
            Fault::Iod { iod, power, down_ms } => self.act(Action::IodDies { iod, power, down_ms }),
            Fault::IodAfter { iod, pieces, power, down_ms } => {
                let told = cluster.borrow().net.after_pieces(IOD + iod as u64, pieces);
                self.when(told, Action::IodDies { iod, power, down_ms });
            }
            Fault::IodDisk { iod, changes, down_ms } => {
                cluster.borrow().iods[iod].die_after(changes);
                self.after(2 + changes * 5, Action::IodDies { iod, power: true, down_ms });
            }
            Fault::IodRolledBack { iod, ms } => self.roll_back_iod(iod, ms),
            Fault::MgrRolledBack { ms } => self.roll_back_mgr(ms),
            Fault::Client { client } => self.client_dies(client),
            Fault::Reset { host } => cluster.borrow().net.reset_one(host),
            Fault::Flaky { times: 0, .. } => {}
            Fault::Flaky { host, pieces, times } => {
                let told = cluster.borrow().net.after_pieces(host, pieces);
                self.when(told, Action::Flakes { host, pieces, times });
            }
            Fault::Lose { host } => cluster.borrow().net.lose_one(host),
            Fault::Cut { a, b, ms } => {
                cluster.borrow().net.cut(a, b);
                self.after(ms, Action::Heal(a, b));
                if Duration::from_millis(ms) > SILENCE {
                    self.after(SILENCE.as_millis() as u64, Action::GiveUp(a, b));
                }
            }
            Fault::Storm { conditions, ms } => {
                cluster.borrow().net.set_conditions(conditions);
                self.after(ms, Action::StormOver);
            }
            Fault::IodErrors { iod, percent, ms } => {
                cluster.borrow().iods[iod].set_faults(DiskFaults { failing_percent: percent, slow_ms: 0 });
                self.after(ms, Action::IodWell(iod));
            }
            Fault::IodSlow { iod, slow_ms, ms } => {
                cluster.borrow().iods[iod].set_faults(DiskFaults { failing_percent: 0, slow_ms });
                self.after(ms, Action::IodWell(iod));
            }
            Fault::IodFull { iod, ms } => {
                cluster.borrow().iods[iod].disk().set_capacity(0);
                self.after(ms, Action::IodWell(iod));
            }
            Fault::MgrErrors { percent, ms } => {
                cluster.borrow().mgr.disk().fail(percent);
                self.after(ms, Action::MgrWell);
            }
            Fault::MgrFull { ms } => {
                cluster.borrow().mgr.disk().set_capacity(0);
                self.after(ms, Action::MgrWell);
            }
            Fault::MgrSlow { flush_ms, ms } => {
                cluster.borrow().mgr.set_flush_ms(flush_ms);
                self.after(ms, Action::MgrWell);
            }
        }
    }

    fn roll_back_iod(&mut self, iod: usize, ms: u64) {
        let older = self.old_images.of_iod(&self.cluster.borrow(), iod);
        let Some(older) = older.filter(|_| !self.old_images.is_mgr_older()) else { return };
        trace::say(format!("{} has an older disk", name(IOD + iod as u64)));
        {
            let mut cluster = self.cluster.borrow_mut();
            cluster.iods[iod].die(Death::PowerCut);
            cluster.iods[iod].put_older(older);
        }
        self.start_iod(iod);
        self.after(ms, Action::IodPutBack(iod));
    }

    fn put_back_iod(&mut self, iod: usize) {
        let was_older = {
            let mut cluster = self.cluster.borrow_mut();
            cluster.iods[iod].die(Death::Killed);
            cluster.iods[iod].put_back()
        };
        trace::say(format!("{} has its right disk: {was_older}", name(IOD + iod as u64)));
        self.start_iod(iod);
    }

    fn roll_back_mgr(&mut self, ms: u64) {
        let cluster = self.cluster;
        let Some(older) = self.old_images.of_mgr(&cluster.borrow()) else { return };
        trace::say("the mgr has an older disk");
        self.mgr_dies(Death::Killed);
        self.old_images.load_mgr(&cluster.borrow(), &older);
        self.after(ms, Action::MgrPutBack);
        cluster.borrow_mut().start_mgr();
    }

    fn put_back_mgr(&mut self) {
        if self.cluster.borrow().mgr.serves() {
            self.world.history().model.fail("the mgr serves an older copy of its store".into());
        }
        self.mgr_dies(Death::Killed);
        self.old_images.put_back_mgr(&self.cluster.borrow());
        self.cluster.borrow_mut().start_mgr();
    }

    fn mgr_dies(&mut self, death: Death) {
        let mut cluster = self.cluster.borrow_mut();
        if cluster.mgr.is_up() {
            self.world.history().mgr_died();
        }
        if death == Death::PowerCut {
            self.world.history().mgr_lost_power();
        }
        cluster.mgr.die(death);
        self.old_images.keep(&cluster);
    }

    fn client_dies(&mut self, client: u64) {
        let host = CLIENT + client;
        trace::say(format!("{} dies", name(host)));
        self.cluster.borrow().net.process_died(host);
        self.clients[client as usize].kill();
        self.world.history().client_died(host);
    }

    fn iod_well(&mut self, iod: usize) {
        let mut cluster = self.cluster.borrow_mut();
        cluster.iods[iod].disk().set_capacity(IOD_DISK);
        let had_errors = cluster.iods[iod].set_faults(DiskFaults::default());
        let gave_up = cluster.iods[iod].disk().is_dead();
        if had_errors || gave_up {
            // After a failed fsync of an object's file, the iod returns errors for this object until the iod
            // restarts. So restart the iod, as an operator does. If the iod's file system has failed, cut the power
            // of the host instead, because the operator must mount the file system again.
            cluster.iods[iod].die(if gave_up { Death::PowerCut } else { Death::Killed });
            drop(cluster);
            self.after(50, Action::StartIod(iod));
        }
    }

    fn mgr_well(&self) {
        let cluster = self.cluster.borrow();
        cluster.mgr.disk().fail(0);
        cluster.mgr.disk().set_capacity(MGR_DISK);
        cluster.mgr.set_flush_ms(self.plan.flush_ms);
    }

    /// Ends every fault and starts all daemons that are down.
    fn calm_down(&mut self) {
        trace::say("faults are over");
        let agenda = std::mem::take(&mut self.agenda);
        for action in agenda.into_values() {
            if !matches!(action, Action::Begin(_) | Action::Move(_) | Action::MgrDies { .. } | Action::IodDies { .. }) {
                self.act(action);
            }
        }
        self.mgr_well();
        for iod in 0..self.plan.iods {
            self.iod_well(iod);
        }
        self.cluster.borrow().net.set_conditions(self.plan.conditions);
        // A planned disk failure may not have happened yet. Cut the power of the disk's host now, which cancels the
        // failure, so that the disk does not fail during the final checks.
        let (mgr_dying, iods_dying) = {
            let cluster = self.cluster.borrow();
            (cluster.mgr.disk().is_dying(), cluster.iods.iter().map(|iod| iod.is_dying()).collect::<Vec<_>>())
        };
        if mgr_dying {
            self.mgr_dies(Death::PowerCut);
        }
        for iod in (0..self.plan.iods).filter(|iod| iods_dying[*iod]) {
            self.cluster.borrow_mut().iods[iod].die(Death::PowerCut);
        }
        self.quiet = true;
        self.cluster.borrow_mut().start_mgr();
        for iod in 0..self.plan.iods {
            self.start_iod(iod);
        }
    }
}

fn death(power: bool) -> Death {
    if power { Death::PowerCut } else { Death::Killed }
}
