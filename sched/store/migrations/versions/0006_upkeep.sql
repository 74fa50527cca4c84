-- Autovacuum of each table by how it is written, and what the duty that keeps history tells people.
-- All locks here pass by readers and writers; a vacuum that is under way gives way.

-- Hot, a row enters and leaves within seconds: dead entries at the head of an index are read by every claim. Without pauses
-- a vacuum of so few pages is over at once.
alter table rota.job set (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
alter table rota.run set (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- A few rows, updated every second: they fit into a page or two if the dead ones go soon.
alter table rota.member set (autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
alter table rota.partition set (autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
alter table rota.duty set (fillfactor = 50,
  autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

-- Large at times, and emptied from one end.
alter table rota.key set (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table rota.dead set (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Append-only: what a first vacuum freezes no later one has to read. New days are made so (sched/store/postgres/days.py).
do $$
declare day regclass;
begin
  for day in select inhrelid::regclass from pg_inherits where inhparent = 'rota.history'::regclass loop
    execute format('alter table %s set (autovacuum_freeze_min_age = 0, autovacuum_vacuum_insert_threshold = 10000)', day);
  end loop;
end $$;

alter table rota.duty add column told jsonb;  -- what its last round has to tell
