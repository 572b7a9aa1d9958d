# Loads a scene, lets it run, and prints where its nodes are at each frame of FRAMES, after TOKEN:
# no line of a scene's own can begin so.
extends SceneTree

const FRAMES = []
const TOKEN = ""

func _init():
	var packed = load("res://scene.tscn")
	if packed == null or not packed.can_instance():
		print(TOKEN, to_json([]))
		quit()
		return
	var scene = packed.instance()
	root.add_child(scene)
	var seen = []
	for frame in FRAMES:
		while Engine.get_physics_frames() < frame:
			yield(self, "physics_frame")
		seen.append(look(scene, "", {}))
	print(TOKEN, to_json(seen))
	quit()

# Class and place of every node below one, by path.
func look(node, above, found):
	for child in node.get_children():
		var path = above + child.name
		var place = null
		if child is Spatial:
			var at = child.global_transform.origin
			place = [at.x, at.y, at.z]
		found[path] = [child.get_class(), place]
		look(child, path + "/", found)
	return found
