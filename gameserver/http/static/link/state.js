// What a scene's entities are like (`world.state`): a mirror of the server's registers.

export class WorldState {
  #entities = new Map(); // entity id -> Map of its keys

  /** Takes in a `state.delta`. The server sends items in the order of changes, so they just hold. */
  apply({ items, full = false }) {
    if (full) this.#entities.clear();
    for (const { e: entity, k: key, v: value } of items) {
      const keys = this.#entities.get(entity) ?? new Map();
      if (value === null) keys.delete(key);
      else keys.set(key, value);
      if (keys.size) this.#entities.set(entity, keys);
      else this.#entities.delete(entity);
    }
  }

  get(entity, key) {
    return this.#entities.get(entity)?.get(key);
  }

  /** Entity ids, and all that is known of each: [id, Map]. */
  entries() {
    return this.#entities.entries();
  }
}
